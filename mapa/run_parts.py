"""What every run is made of, simulated or on a network: data, model and shards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloud.assembly import settled, with_grid
from cloud.evaluation import Evaluator
from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset, Inputs, Labels, Samples, content_checksum
from common.datasets.formats import NAMED
from common.datasets.published import DatasetDescription
from common.datasets.schema import DataSchema
from common.datasets.source import LOCAL, Source, read_samples
from common.errors import ConfigurationError, MapaError
from common.models.features import FeatureCache, user_cache
from common.models.model import Model
from common.quantities import Indices
from common.scenario.parts import dataset_for, least_records, model_for, own_schema
from common.scenario.scenario import Scenario
from edge.policy import check_number
from edge.shards import shards_for
from mapa.budget import Say, calibrated


@dataclass(frozen=True, slots=True)
class RunParts:
    """A scenario with its data loaded and cut into shards, and its model made."""

    scenario: Scenario  # with z filled in where it gave a total budget instead, and what follows from z
    dataset: Dataset
    model: Model
    rows: list[Indices]  # shard k of K; none where edges bring records of their own

    @property
    def shard_sizes(self) -> list[int]:
        """n_k; where edges bring records of their own, the least that takes part."""
        least = least_records(self.scenario)
        if not self.rows and least is not None:
            return [least] * self.scenario.workers
        return [len(shard) for shard in self.rows]

    def new_evaluator(self) -> Evaluator | None:
        """Bring the test set into the model's own form, which takes its time and memory; None: there is none."""
        if self.dataset.test is None:
            return None
        weight = self.scenario.model.regularization
        return Evaluator.of(self.model, self.dataset.test, weight, self.cache)

    @property
    def cache(self) -> FeatureCache | None:
        """Where features are kept; those of records that an edge brings itself are nowhere."""
        return None if self.scenario.data.set == LOCAL else user_cache()


NEEDS_FILES = (
    f"data.set = {LOCAL!r}: every edge brings its own records, and their account must outlast a run; start `mapa cloud`"
    " and for each of them `mapa edge --data FILE`, or simulate it with `mapa simulate --data FILE` once for each edge"
)


def check_no_helpers(scenario: Scenario, command: str) -> None:
    """Refuse [secure] where a command starts no helpers: its cloud would wait for them for ever."""
    if scenario.secure is not None:
        raise ConfigurationError(
            f"secure.at_least = {scenario.secure.at_least}: `mapa {command}` starts no helpers yet; `mapa run` does"
        )


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """Files in place of a data set that all hold."""

    of_edges: tuple[Path, ...] | None = None  # one for each edge; None: only the edges have them
    test: Path | None = None  # None: no metric is claimed


def assemble(
    scenario: Scenario,
    load: Callable[[Source], Dataset],
    own: OwnFiles | None = None,
    data_dir: Path | None = None,
    say: Say | None = None,
) -> RunParts:
    """Load the data, take the holdout, make the model, deal the shards; ConfigurationError where that cannot be.

    An edge does the same for itself (edge/joining.py): it must not hold more than its own shard, and checks
    at each step what the cloud's scenario would cost it.
    """
    if scenario.data.set == LOCAL:
        return _assemble_own(scenario, own, data_dir, say)
    if own is not None:
        raise ConfigurationError(
            f"--data, --test-data: go with data.set = {LOCAL!r}, where edges bring records of their own, not with"
            f" {scenario.data.set!r}"
        )
    dataset = dataset_for(scenario, load)
    model = model_for(scenario, dataset.shape, dataset.classes, dataset.target_range, data_dir)
    rows = shards_for(scenario, dataset.train)
    noised = calibrated(scenario, [len(shard) for shard in rows], say)
    return RunParts(with_grid(settled(noised, model), model), dataset, model, rows)


def _assemble_own(
    scenario: Scenario, own: OwnFiles | None, data_dir: Path | None, say: Say | None
) -> RunParts:
    """Take what is here of a run whose edges bring records of their own: all files in a simulation, else none."""
    schema, least = own_schema(scenario), least_records(scenario)
    if own is None or schema is None or least is None:
        raise ConfigurationError(NEEDS_FILES)
    files = own.of_edges
    if files is not None and len(files) != scenario.workers:
        raise ConfigurationError(
            f"--data: {len(files)} files; must be {scenario.workers}, one for each edge of the scenario"
        )
    shards = [read_samples(path, schema) for path in files or ()]
    sizes = [len(shard) for shard in shards]
    for size in sizes:
        check_number(size, at_least=least)
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]) if sizes else []
    test = None if own.test is None else read_samples(own.test, schema)
    train = _joined(shards, schema)
    parts = [part for part in (train, test) if part is not None and len(part)]
    checksum = content_checksum(*parts) if parts else ""
    dataset = Dataset(LOCAL, schema.shape, schema.classes, train, test, checksum, schema.target_range)
    model = model_for(scenario, schema.shape, schema.classes, schema.target_range, data_dir)
    noised = calibrated(scenario, sizes or [least] * scenario.workers, say)
    return RunParts(with_grid(settled(noised, model), model), dataset, model, rows)


def _joined(shards: Sequence[Samples], schema: DataSchema) -> Samples:
    """Return all shards one after the other; arrays may be uint8 in one file and float32 in another."""
    if not shards:
        return Samples(np.empty((0, schema.width), np.float32), np.empty(0, np.int64))
    mixed = len({shard.inputs.dtype for shard in shards}) > 1
    inputs: Inputs = np.concatenate([shard.values() if mixed else shard.inputs for shard in shards])
    labels: Labels = np.concatenate([shard.labels for shard in shards])
    return Samples(inputs, labels)


def edge_data_bytes(scenario: Scenario) -> int:
    """Return what an edge's data take at most while it cuts its shard; 0: unknown before they are read."""
    known = NAMED.get(scenario.data.set)
    if known is None:
        return 0
    found = known.about
    even = scenario.data.partition == "iid"
    shard = -(-found.train // scenario.workers) if even else found.train
    # as bytes, the shard as float32 too
    return math.prod(found.shape) * (found.train + found.test + 5 * shard)


def parameters_of(scenario: Scenario, data_dir: Path) -> int | None:
    """Return N, without the data where their shape is known anyway; None: this machine cannot make the model."""
    table, known = scenario.data.declared, NAMED.get(scenario.data.set)
    form: DataSchema | DatasetDescription | Dataset
    try:
        if table is not None:
            form = table.declared
        else:
            form = known.about if known else load_dataset(scenario.data.source, data_dir)
        return model_for(scenario, form.shape, form.classes, form.target_range, data_dir).dimension
    except MapaError:
        return None
