"""catalogue.toml: which lines make which figure, and how far each size goes."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from common.errors import ConfigurationError
from mapa.figure_lines import matching_lines

SIZES = ("tiny", "quick", "full")
OURS = "ours"  # the experiments of number 7 together

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


class Block(_Table):
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
        found: Size = getattr(self, name)
        return found

    def engine_at(self, size: Size) -> Engine:
        return size.engine or self.engine

    def lines_at(self, size: Size) -> list[str]:
        """Return the names of the lines at this size."""
        patterns = size.lines or self.lines
        found = [line for pattern in patterns for line in matching_lines(pattern)]
        if not found:
            raise ConfigurationError(f"catalogue: lines = {patterns}: match no line of a figure")
        return found


class Threshold(_Table):
    panel: str
    paper: float  # the number in the caption
    taken: float  # the test loss that we call sufficient


class Catalogue(_Table):
    experiment: list[Experiment]
    block: list[Block]
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
        known = {experiment.name for experiment in self.experiment}
        numbers = {str(experiment.number) for experiment in self.experiment}
        for word in wanted:
            if word not in known | numbers | {OURS}:
                raise ConfigurationError(
                    f"figure = {word!r}: allowed are {', '.join(e.name for e in self.experiment)}, {OURS}, 1 to 7"
                )
        ours = max(experiment.number for experiment in self.experiment)
        return [
            experiment
            for experiment in self.experiment
            if experiment.name in wanted
            or str(experiment.number) in wanted
            or (OURS in wanted and experiment.number == ours)
        ]

    def thresholds(self) -> dict[str, Threshold]:
        return {threshold.panel: threshold for threshold in self.threshold}


@cache
def catalogue() -> Catalogue:
    path = Path(__file__).with_name("catalogue.toml")
    return Catalogue.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
