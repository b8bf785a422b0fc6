"""The final model against the replay, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from common.models.model import Block
from common.quantities import Vector
from common.records.regular import MOST_MODEL
from common.scenario.scenario import Scenario
from mapa.verification.check import Check, failed, not_checked, passed
from mapa.verification.rerun import Rerun
from mapa.verification.run_files import MODEL, RunFiles, UnreadableError
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


def model_against_replay(
    files: RunFiles, rerun: Rerun, scenario: Scenario, layout: Sequence[Block] | None
) -> Iterator[Check]:
    """Check that model.safetensors is what the log gives."""
    tensors, metadata = final_model(files)
    x, replayed = tensors.pop("x"), rerun.server.result
    words = difference(x, replayed)
    if words:
        yield failed("model", MODEL, f"is not the replayed one: {words}")
    expected = {"scenario_sha256": scenario.digest, "updates": str(rerun.server.updates)}
    if metadata != expected:
        yield failed("model", MODEL, f"metadata {metadata!r:.200}; by the log {expected}")
    if layout is None:
        yield not_checked("model", MODEL, "its named blocks: the run's model cannot be made here")
    elif tensors.keys() != {block.name for block in layout} or any(
        tensors[block.name].tobytes() != x[block.slice].tobytes() for block in layout
    ):
        words = "its blocks are not the vector x"
        yield failed("model", MODEL, words)
    if not words and metadata == expected:
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
