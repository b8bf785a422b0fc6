"""The final model against the replay, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from common.models.model import Block
from common.quantities import Vector, is_finite
from common.records.regular import MOST_MODEL
from common.scenario.scenario import Scenario
from mapa.verification.check import Check, claimed, failed, passed
from mapa.verification.rerun import Rerun
from mapa.verification.run_files import MODEL, SUMMARY, RunFiles, UnreadableError
from mapa.verification.strict_json import strict_object

_HEADER = 1 << 24  # bytes


def final_model(files: RunFiles) -> tuple[dict[str, Vector], dict[str, object]]:
    """Return the tensors of model.safetensors, `x` among them, and its metadata; UnreadableError for anything else."""
    content = files.contents.get(MODEL)
    if content is None:
        raise UnreadableError(MODEL, "missing")
    try:
        if len(content) > MOST_MODEL:
            raise ValueError(f"{len(content)} bytes, at most {MOST_MODEL}")
        size = int.from_bytes(content[:8], "little")
        header = strict_object(content[8 : 8 + min(size, _HEADER + 1)], _HEADER)
        tensors = load(bytes(content))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UnreadableError(MODEL, f"not a model: {error}") from error
    x = tensors.get("x")
    if x is None or x.ndim != 1 or x.dtype != np.float32:
        raise UnreadableError(MODEL, "no flat vector x in float32")
    metadata = header.get("__metadata__")
    return tensors, metadata if isinstance(metadata, dict) else {}


def model_of_run(
    files: RunFiles, rerun: Rerun | None, scenario: Scenario, layout: Sequence[Block] | None
) -> Iterator[Check]:
    """Check that model.safetensors is what the log gives; without one, that it has the form of the run's."""
    tensors, metadata = final_model(files)
    summary = files.json(SUMMARY)
    x, wrong = tensors.pop("x"), []
    if rerun is not None and (words := difference(x, rerun.server.result)):
        wrong.append(f"is not the replayed one: {words}")
    if rerun is None and summary.get("reason") != "diverged" and not is_finite(x):
        wrong.append("numbers that are not finite")
    updates = summary.get("updates") if rerun is None else rerun.server.updates
    expected = {"scenario_sha256": scenario.digest, "updates": str(updates)}
    if metadata != expected:
        wrong.append(f"metadata {metadata!r:.200}; by the run {expected}")
    if summary.get("parameters") != x.size:
        wrong.append(f"{x.size} numbers; summary.json has parameters = {summary.get('parameters')!r:.40}")
    if layout is not None and (
        tensors.keys() != {block.name for block in layout}
        or any(tensors[block.name].tobytes() != x[block.slice].tobytes() for block in layout)
    ):
        wrong.append("its blocks are not the vector x")
    for words in wrong:
        yield failed("model", MODEL, words)
    if layout is None:
        yield claimed("blocks", MODEL, "names of the model's blocks: the run's model cannot be made here")
    if rerun is None:
        yield claimed("model", MODEL, "every number of the final model: without a log nothing is replayed")
    elif not wrong:
        yield passed("model", MODEL, f"the same {x.size} numbers as the replay's, bit for bit")


def difference(x: Vector, replayed: Vector) -> str:
    """Say how two models differ; '' where every bit is the same."""
    if x.shape != replayed.shape:
        return f"{x.size} numbers, the replay has {replayed.size}"
    unequal = np.flatnonzero(x.view(np.uint32) != np.ascontiguousarray(replayed, np.float32).view(np.uint32))
    if not len(unequal):
        return ""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.abs(x.astype(np.float64) - replayed).max())
    return f"{len(unequal)} of {x.size} numbers differ, the largest difference is {largest:g}"
