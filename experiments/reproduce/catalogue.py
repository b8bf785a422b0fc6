"""What a reproduction runs (catalogue.toml, and the points it stands for), and what is kept of a finished point."""

from __future__ import annotations

import math
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from common.datasets.catalogue import describe
from common.errors import ConfigurationError
from common.mechanism.clippings.batch_mean import BatchMean
from common.scenario.scenario import Scenario
from experiments.harness import ResultCache, matching, result_key
from mapa.scenario_files import load_scenario
from mapa.scenario_patterns import PREFIX, matching_lines

SIZES = ("tiny", "quick", "full")
OURS = "ours"  # the experiments of number 7 together

ATTACK: dict[str, Any] = {  # what `reconstruction.attack` is given
    "epsilons": (0.01, 0.1, 1.0),
    "laws": ("exponential-norm", "gamma-norm"),
    "clippings": (BatchMean(),),
    "releases": 20,  # of which the figures are means
    "batch_size": 1,  # as in the method that the paper cites
    "retrain": True,
}
ATTACK_OPTIONS = (  # the same for `mapa attack`
    *("--epsilon", ",".join(f"{epsilon:g}" for epsilon in ATTACK["epsilons"])),
    *(word for law in ATTACK["laws"] for word in ("--law", law)),
    *(word for clipping in ATTACK["clippings"] for word in ("--clipping", clipping.name)),
    *("--releases", str(ATTACK["releases"]), "--batch-size", str(ATTACK["batch_size"]), "--retrain"),
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
        patterns = size.lines or self.lines
        lines = [line for pattern in patterns for line in matching_lines(pattern)]
        if not lines:
            raise ConfigurationError(f"catalogue: lines = {patterns}: match no line of a figure")
        return lines


class Threshold(_Table):
    panel: str
    paper: float  # the number in the caption
    taken: float  # the test loss that we call sufficient


class FigureCatalogue(_Table):
    experiment: list[Experiment]
    block: list[LineBlock]
    threshold: list[Threshold]

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
def catalogue() -> FigureCatalogue:
    path = Path(__file__).with_name("catalogue.toml")
    return FigureCatalogue.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


FORMAT = 2  # of a cached result, part of its key; raised whenever the same scenario would give other numbers
PROCESSES = 4  # that share the edges of `mapa run`: every one of them imports torch
_EMBEDDED = "mnist-5k"
_RUN_AS = {  # each engine: the command of mapa that runs it, and the words for it
    "block": ("simulate", "vectorised simulation"),
    "events": ("simulate", "simulation"),
    "synchronous": ("simulate", "simulation in rounds"),
    "testbed": ("run", "processes"),
    "containers": ("containers", "containers"),
    "attack": ("attack", "attack on a simulation"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePoint:
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
        return _RUN_AS[self.engine][1]

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
    def words(self) -> list[str]:
        """What every command that runs this point alone begins with, after `mapa`."""
        changes = [word for change in self.changes for word in ("--set", change)]
        return [_RUN_AS[self.engine][0], self.file, *changes, "--seed", str(self.seed)]

    @property
    def command(self) -> str:
        """The command that runs this point alone."""
        words = ["mapa", *self.words]
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
    names = [experiment.name for experiment in experiments]
    return [block for block in catalogue().block if block.experiment in names]


def all_points(
    experiments: Sequence[Experiment],
    size: str,
    data_dir: Path,
    *,
    most_seeds: int | None = None,
    containers: bool = False,
    only: Sequence[str] = (),
) -> list[FigurePoint]:
    """Return every point of the chosen experiments at a size; `most_seeds` caps what the size says.

    `only` are globs of scenario names; none: all of them.
    """
    present = {known.name for known in describe(data_dir) if known.present}
    lines = [(block, line) for block in blocks_of(experiments) for line in block.lines_at(block.size(size))]
    points = []
    for block, line in matching(lines, only, lambda pair: pair[1]):
        file, reach = f"{PREFIX}{line}", block.size(size)
        _, plain = load_scenario(file)
        engine: str = block.engine_at(reach)
        attacked = tuple(int(value) for value in reach.values) if engine == "attack" else ()
        longest = max(attacked) if attacked else reach.iterations
        lengths = {"iterations": longest, "evaluation.every": reach.every}
        fixed = [f"data.set={data_set(plain.data.set, size, present)}", *reach.set]
        fixed += [f"{key}={value}" for key, value in lengths.items() if value is not None]
        seeds = range(block.first_seed, block.first_seed + min(reach.seeds, most_seeds or reach.seeds))
        points += [
            FigurePoint(
                experiment=block.experiment,
                line=line,
                engine="containers" if engine == "testbed" and containers else engine,
                sweep=block.sweep,
                x=x,
                seed=seed,
                changes=(*fixed, *swept),
                asked=plain.data.set,
                scenario=load_scenario(file, (*fixed, *swept), seed=seed)[1],
                updates=attacked,
                data_dir=data_dir,
            )
            for x, swept in _swept(block, reach.values, plain)
            for seed in seeds
        ]
    return points


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


def _swept(
    block: LineBlock, values: Sequence[int | float | str], plain: Scenario
) -> list[tuple[float | None, list[str]]]:
    """Return (x, changes); once only where the swept key means nothing to the algorithm."""
    key = block.sweep
    means_nothing = {"privacy": not plain.private, "edges": plain.centralised}
    if key is None or means_nothing.get(key.partition(".")[0]):
        return [(None, [])]
    numbers = block.x or [float(value) for value in values]
    return [(x, [f"{key}={value}"]) for x, value in zip(numbers, values, strict=False)]


# -- results ------------------------------------------------------------------------------------------

WINDOW = 5  # successive evaluations whose mean loss decides on convergence, as in the paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Curves and counts of one finished run."""

    key: str
    digest: str  # of the scenario
    engine: str
    t: list[int]  # updates done at each evaluation
    accuracy: list[float]
    loss: list[float | None]  # None: not finite
    seconds: list[float] | None = None  # of each evaluation: virtual, or of the network
    staleness: dict[int, int] = field(default_factory=dict)
    clips: list[tuple[int, float]] = field(default_factory=list)  # (first update, C)
    norms: dict[str, list[float]] | None = None
    cells: list[dict[str, Any]] | None = None  # of the attack
    run: str | None = None  # directory of its records
    wall: float = 0.0  # seconds it took to make

    @property
    def final(self) -> float:
        return self.accuracy[-1]

    @property
    def after_a_quarter(self) -> float:
        return next(a for t, a in zip(self.t, self.accuracy, strict=True) if t >= self.t[-1] / 4)

    @property
    def floor(self) -> int | None:
        """The least count that `reached` can give; None: too few evaluations for any."""
        return self.t[WINDOW - 1] if len(self.t) >= WINDOW else None

    def reached(self, threshold: float) -> int | None:
        """Return the first update at which the mean loss of WINDOW evaluations is at most the threshold."""
        losses = [math.inf if loss is None else loss for loss in self.loss]
        for end in range(WINDOW, len(losses) + 1):
            if math.fsum(losses[end - WINDOW : end]) / WINDOW <= threshold:
                return self.t[end - 1]
        return None

    def seconds_to(self, accuracy: float) -> float | None:
        """Return when an evaluation first showed that accuracy."""
        timed = zip(self.seconds or [], self.accuracy, strict=False)
        return next((when for when, seen in timed if seen >= accuracy), None)


def result_cache(directory: Path) -> ResultCache[Result]:
    """Return the cache of a reproduction, which outlives an interruption."""
    return ResultCache(directory, Result)


@dataclass(frozen=True, slots=True)
class FinishedPoint:
    point: FigurePoint
    result: Result


class Results:
    """The finished points of a reproduction, asked for by what they are."""

    def __init__(self, points: Sequence[FigurePoint], by_key: Mapping[str, Result]) -> None:
        self.entries = [FinishedPoint(p, by_key[p.key]) for p in points if p.key in by_key]
        self.missing = [p for p in points if p.key not in by_key]

    def of(self, experiment: str, **wanted: object) -> list[FinishedPoint]:
        """Return the entries whose point has all these attributes; a line without x fits every x."""

        def fits(point: FigurePoint) -> bool:
            values = {key: getattr(point, key) for key in wanted}
            return all(values[k] == v or (k == "x" and values[k] is None) for k, v in wanted.items())

        return [e for e in self.entries if e.point.experiment == experiment and fits(e.point)]

    def panels(self, experiment: str) -> list[str]:
        """Return the panels, without those whose runs are all in an earlier one: images that stand in count once."""
        keys: dict[str, set[str]] = {}
        for entry in self.of(experiment):
            keys.setdefault(entry.point.panel, set()).add(entry.point.key)
        names = list(keys)
        return [name for i, name in enumerate(names) if not any(keys[name] <= keys[n] for n in names[:i])]

    def title(self, panel: str) -> str:
        """Return a panel's name, and the data where the embedded images alone stood for its own."""
        model, _, asked = panel.partition("-")
        used = {e.point.scenario.data.set for e in self.entries if e.point.panel == panel}
        return f"{model.upper()} {asked.upper()}" + (" (mnist-5k)" if used == {"mnist-5k"} else "")

    def xs(self, experiment: str, **wanted: object) -> list[float]:
        return sorted({e.point.x for e in self.of(experiment, **wanted) if e.point.x is not None})

    def variants(self, experiment: str, panel: str) -> list[str]:
        return list(dict.fromkeys(entry.point.variant for entry in self.of(experiment, panel=panel)))

    def finals(self, experiment: str, **wanted: object) -> list[float]:
        return [entry.result.final for entry in self.of(experiment, **wanted)]
