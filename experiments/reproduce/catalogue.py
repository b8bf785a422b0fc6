"""What a reproduction runs: catalogue.toml, and the points it stands for, each with the command that repeats it."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from common.datasets.catalogue import describe
from common.errors import ConfigurationError
from common.mechanism.clippings.batch_mean import BatchMean
from common.scenario.scenario import Scenario
from experiments.harness import matching, result_key
from mapa.scenario_files import load_scenario
from mapa.scenario_patterns import PREFIX, matching_lines

SIZES = ("tiny", "quick", "full")
OURS = "ours"  # the experiments of number 7 together

ATTACK_EPSILONS = (0.01, 0.1, 1.0)
ATTACK_LAWS = ("exponential-norm", "gamma-norm")
ATTACK_CLIPPING = BatchMean()
ATTACK_RELEASES = 20  # of which the figures are means
ATTACK_BATCH = 1  # as in the method that the paper cites
# The same for `mapa attack`.
ATTACK_OPTIONS = (
    *("--epsilon", ",".join(f"{epsilon:g}" for epsilon in ATTACK_EPSILONS)),
    *(word for law in ATTACK_LAWS for word in ("--law", law)),
    *("--clipping", ATTACK_CLIPPING.name),
    *("--releases", str(ATTACK_RELEASES)),
    *("--batch-size", str(ATTACK_BATCH)),
    "--retrain",
)

Engine = Literal["block", "events", "synchronous", "testbed", "attack"]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Experiment(_Table):
    name: str
    number: int
    title: str
    paper: str  # the LaTeX label it stands for


class Size(_Table):
    """How far a block goes; what is absent stays as the line's scenario has it."""

    seeds: int = Field(1, ge=1)
    iterations: int | None = None
    every: int | None = None
    values: list[int | float | str] = Field(default_factory=list)
    set: list[str] = Field(default_factory=list)
    lines: list[str] | None = None  # fewer than the block has
    engine: Engine | None = None  # another than the block's


class LineBlock(_Table):
    """Lines of one figure that are swept alike."""

    experiment: str
    lines: list[str] = Field(min_length=1)  # names or patterns of scenarios/figures/lines.toml
    engine: Engine
    sweep: str | None = None
    x: list[float] | None = None
    first_seed: int = Field(0, ge=0)
    tiny: Size
    quick: Size
    full: Size

    def size(self, name: str) -> Size:
        return {"tiny": self.tiny, "quick": self.quick, "full": self.full}[name]

    def engine_at(self, size: Size) -> Engine:
        return size.engine or self.engine

    def lines_at(self, size: Size) -> list[str]:
        """Return the names of the lines at this size."""
        patterns = size.lines or self.lines
        lines = [line for pattern in patterns for line in matching_lines(pattern)]
        if not lines:
            raise ConfigurationError(f"catalogue: lines = {patterns}: match no line of a figure")
        return lines


class Threshold(_Table):
    panel: str
    paper: float  # the number in the caption
    taken: float  # the test loss that we call sufficient


class Catalogue(_Table):
    experiment: list[Experiment]
    block: list[LineBlock]
    threshold: list[Threshold]

    @model_validator(mode="after")
    def _blocks_belong(self) -> Self:
        names = {experiment.name for experiment in self.experiment}
        for block in self.block:
            if block.experiment not in names:
                raise ValueError(f"block of {block.experiment!r}: allowed are {', '.join(sorted(names))}")
        return self

    def chosen(self, wanted: list[str]) -> list[Experiment]:
        """Return the experiments named by name, by number, or as `ours`; all where none is."""
        if not wanted:
            return self.experiment
        last = max(experiment.number for experiment in self.experiment)
        names = {e: {e.name, str(e.number), *([OURS] * (e.number == last))} for e in self.experiment}
        for word in wanted:
            if not any(word in known for known in names.values()):
                allowed = ", ".join(e.name for e in self.experiment)
                raise ConfigurationError(f"figure = {word!r}: allowed are {allowed}, {OURS}, 1 to {last}")
        return [experiment for experiment, known in names.items() if known & set(wanted)]

    def thresholds(self) -> dict[str, Threshold]:
        return {threshold.panel: threshold for threshold in self.threshold}


@cache
def catalogue() -> Catalogue:
    path = Path(__file__).with_name("catalogue.toml")
    return Catalogue.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


FORMAT = 2  # of what a run leaves in the cache; raised whenever the same scenario would give other numbers
PROCESSES = 4  # that share the edges of `mapa run`: every one of them imports torch
_EMBEDDED = "mnist-5k"
_COMMANDS = {"testbed": "run", "containers": "containers", "attack": "attack"}
_RUN_AS = {
    "block": "vectorised simulation",
    "events": "simulation",
    "synchronous": "simulation in rounds",
    "testbed": "processes",
    "containers": "containers",
    "attack": "attack on a simulation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run: a line of a figure at one x, with one seed."""

    experiment: str
    line: str  # its name, as in scenarios/figures/lines.toml
    engine: str  # of the catalogue; `testbed` means processes here, and `containers` the same in containers
    sweep: str | None
    x: float | None  # None: the line does not depend on x
    seed: int
    changes: tuple[str, ...]
    asked: str  # data set of the line's scenario
    scenario: Scenario
    updates: tuple[int, ...] = ()  # attack: whose models are attacked
    data_dir: Path = Path("data")  # where its data set is, unless it is the embedded one

    @property
    def file(self) -> str:
        """The line as `mapa simulate` takes it."""
        return f"{PREFIX}{self.line}"

    @property
    def panel(self) -> str:
        """Model and data set that the figure's panel is about, e.g. lr-mnist."""
        return "-".join(self.line.split("-", 3)[1:3])

    @property
    def variant(self) -> str:
        """What distinguishes the line within its panel, e.g. audp-fair."""
        return self.line.split("-", 3)[3]

    @property
    def key(self) -> str:
        """Name of the result in the cache."""
        options = [ATTACK_OPTIONS] if self.engine == "attack" else []
        return result_key(FORMAT, self.engine, self.scenario.digest, self.updates, *options)

    @property
    def run_as(self) -> str:
        return _RUN_AS[self.engine]

    @property
    def label(self) -> str:
        """What a reader needs to find it among the others, e.g. testbed-cnn-mnist-mapa, edges 5, seed 0, processes."""
        place = [] if self.x is None else [f"{self.sweep} {self.x:g}"]
        return ", ".join([self.line, *place, f"seed {self.seed}", self.run_as])

    @property
    def stands_in(self) -> bool:
        """Whether the embedded images took the place of the data set that was asked for."""
        return self.scenario.data.set != self.asked

    @property
    def command(self) -> str:
        """Return the command that runs this point alone."""
        words = ["mapa", _COMMANDS.get(self.engine, "simulate"), self.file]
        for change in self.changes:
            words += ["--set", change]
        words += ["--seed", str(self.seed)]
        if self.engine in ("block", "synchronous"):
            words += ["--engine", self.engine]
        if self.engine == "attack":
            words += ["--iterations", ",".join(map(str, self.updates)), *ATTACK_OPTIONS]
        if self.engine == "testbed":
            words += ["--processes", str(PROCESSES)]
        if self.scenario.data.set != _EMBEDDED:
            here = self.data_dir.is_relative_to(Path.cwd())
            words += ["--data-dir", str(self.data_dir.relative_to(Path.cwd()) if here else self.data_dir)]
        return shlex.join(words)


def blocks_of(experiments: Sequence[Experiment]) -> list[LineBlock]:
    names = {experiment.name for experiment in experiments}
    return [block for block in catalogue().block if block.experiment in names]


def all_points(
    experiments: Sequence[Experiment],
    size: str,
    data_dir: Path,
    *,
    most_seeds: int | None = None,
    containers: bool = False,
    only: Sequence[str] = (),
) -> list[Point]:
    """Return every point of the chosen experiments at a size; `most_seeds` caps what the size says.

    `only` are globs of scenario names; none: all of them.
    """
    present = {known.name for known in describe(data_dir) if known.present}
    lines = [(block, line) for block in blocks_of(experiments) for line in block.lines_at(block.size(size))]
    return [
        point
        for block, line in matching(lines, only, lambda pair: pair[1])
        for point in _points(block, line, size, present, data_dir, most_seeds, containers)
    ]


def data_set(asked: str, size: str, present: set[str]) -> str:
    """Return the set to use: quick and tiny take the embedded images for MNIST, and for whatever is absent."""
    if size == "full":
        if asked not in present:
            raise ConfigurationError(
                f"data.set = {asked!r}: not found, and --full takes no substitute; run `mapa data get {asked}`"
            )
        return asked
    if size == "quick" and asked != "mnist" and asked in present:
        return asked
    return _EMBEDDED


def _points(
    block: LineBlock,
    line: str,
    size_name: str,
    present: set[str],
    data_dir: Path,
    most_seeds: int | None,
    containers: bool,
) -> list[Point]:
    """Return the points of one line."""
    size = block.size(size_name)
    seeds = size.seeds if most_seeds is None else min(size.seeds, most_seeds)
    engine: str = block.engine_at(size)
    if engine == "testbed" and containers:
        engine = "containers"
    file = f"{PREFIX}{line}"
    _, plain = load_scenario(file)
    asked = plain.data.set
    fixed = [f"data.set={data_set(asked, size_name, present)}", *size.set]
    attacked = tuple(int(value) for value in size.values) if engine == "attack" else ()
    lengths = {
        "iterations": max(attacked) if attacked else size.iterations,
        "evaluation.every": size.every,
    }
    fixed += [f"{key}={value}" for key, value in lengths.items() if value is not None]
    points = []
    for x, more in _swept(block, size.values, plain):
        for seed in range(block.first_seed, block.first_seed + seeds):
            changes = (*fixed, *more)
            _, scenario = load_scenario(file, changes, seed=seed)
            points.append(
                Point(
                    experiment=block.experiment,
                    line=line,
                    engine=engine,
                    sweep=block.sweep,
                    x=x,
                    seed=seed,
                    changes=changes,
                    asked=asked,
                    scenario=scenario,
                    updates=attacked,
                    data_dir=data_dir,
                )
            )
    return points


def _swept(
    block: LineBlock, values: Sequence[int | float | str], plain: Scenario
) -> list[tuple[float | None, list[str]]]:
    """Return (x, changes); once only where the swept key means nothing to the algorithm."""
    key = block.sweep
    if key is None or (key.startswith("privacy.") and not plain.private):
        return [(None, [])]
    if key == "edges" and plain.centralised:
        return [(None, [])]
    numbers = block.x or [float(value) for value in values]
    return [(x, [f"{key}={value}"]) for x, value in zip(numbers, values, strict=False)]
