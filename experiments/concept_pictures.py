"""The pictures of docs/concepts.md, drawn from a real simulation and from the real schedule.

`python -m experiments.concept_pictures docs/figures` writes asynchrony.svg and stages.svg.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import mapa
from cloud.stages import Stage, planned_stages
from mapa.scenario_files import load_scenario

_EDGES = 3
_SEED = 11
_SPEEDS = [1.8, 1.3, 0.55]  # the third edge is the slow one
_UPDATES = 9
_PANELS = (1, 2, 4, 9)  # updates that a panel shows
_COLOURS = ("#0072b2", "#d55e00", "#009e73")
_INK, _PALE = "#33383d", "#c8ced4"
_WIDTH, _LEFT, _LANE = 760, 70, 34


@dataclass(frozen=True, slots=True)
class Turn:
    """One gradient: the version read, the update that it became, and when."""

    edge: int
    version: int
    t: int
    begun: float  # seconds: when the model was sent to the edge
    applied: float

    @property
    def staleness(self) -> int:
        return self.t - self.version


def first_turns() -> list[Turn]:
    """Return the first gradients of a simulation of three edges, one of them slow."""
    delays = {"kind": "lognormal", "compute": 0.02, "network": 0.004, "spread": 0.2, "speeds": _SPEEDS}
    changed: dict[str, Any] = {"edges": _EDGES, "iterations": _UPDATES, "delays": delays}
    with tempfile.TemporaryDirectory() as folder:
        changed |= {"evaluation": {"every": 0}, "seed": _SEED}
        run = mapa.simulate("quickstart", runs_dir=folder, progress=False, **changed)
        columns = [run.updates[key].tolist() for key in ("edge", "version", "t", "time")]
    begun, turns = [0.0] * _EDGES, []
    for edge, version, t, time in zip(*columns, strict=True):
        turns.append(Turn(edge, version, t, begun[edge], time))
        begun[edge] = time
    return turns


def asynchrony(turns: Sequence[Turn]) -> str:
    """Return the run in steps: each panel is the one before it, and what happened next."""
    height = (_EDGES + 1) * _LANE + 58
    panels = [_panel(turns, shown, number) for number, shown in enumerate(_PANELS)]
    return _svg("Asynchrony in four steps", panels, height)


def _panel(turns: Sequence[Turn], shown: int, number: int) -> Iterator[str]:
    now, end = turns[shown - 1].applied, turns[-1].applied
    yield _text(8, 22, f"{number + 1}. {_caption(turns[:shown])}", size=13, weight="bold")
    yield _text(8, 52, "cloud")
    yield _line(_LEFT, 48, _x(now, end), 48, _INK, 2)
    yield _mark(_LEFT, "x₁")
    for edge in range(_EDGES):
        y = _lane(edge)
        yield _text(8, y + 4, f"edge {edge}")
        yield _line(_LEFT, y, _WIDTH - 20, y, _PALE, 1)
    for turn in turns:
        if turn.begun < now:
            yield from _bar(turn, now, end, done=turn.t <= shown)
    for turn in turns[:shown]:
        yield _mark(_x(turn.applied, end), f"x{_small(turn.t + 1)}")


def _bar(turn: Turn, now: float, end: float, *, done: bool) -> Iterator[str]:
    y, left, colour = _lane(turn.edge), _x(turn.begun, end), _COLOURS[turn.edge]
    right = _x(turn.applied if done else now, end)
    opacity = "1" if done else "0.35"
    place = f'x="{left + 2:.1f}" y="{y - 8}" width="{max(right - left - 4, 1):.1f}" height="16"'
    yield f'<rect {place} rx="3" fill="{colour}" opacity="{opacity}"/>'
    if right - left > 62:
        words = f"on x{_small(turn.version)}" + (f", τ = {turn.staleness}" if done else "")
        yield _text((left + right) / 2, y + 4, words, fill="#fff" if done else _INK, size=11, anchor="middle")
    if done:
        yield _line(right, y - 8, right, 48, colour, 1.2)


def _caption(done: Sequence[Turn]) -> str:
    last, counts = done[-1], [sum(turn.edge == edge for turn in done) for edge in range(_EDGES)]
    shares = ", ".join(f"{count} of edge {edge}" for edge, count in enumerate(counts))
    if len(done) == 1:
        return f"All edges read x₁. Edge {last.edge} is first: its gradient makes x₂, and it alone gets x₂ at once."
    if len(done) == 2:
        made, met = _small(last.version), _small(last.t)
        return f"Edge {last.edge}'s gradient was made on x{made} and is applied to x{met}: staleness {last.staleness}."
    if len(done) < _UPDATES:
        return f"{len(done)} updates, {shares}. A slow gradient is late, not lost."
    return f"{len(done)} updates, {shares}. Nobody waited; the largest staleness is {max(t.staleness for t in done)}."


def stages() -> str:
    """Return the stages of the scenario `quickstart`: ΔS, γ and T_s as the schedule says."""
    _, scenario = load_scenario("quickstart")
    law = scenario.law(0)
    assert law is not None
    moment = law.relative_second_moment(785)  # 28 × 28 weights and a bias
    planned = list(planned_stages(moment, scenario.problem))
    panels = [_stage_panel(planned[: n + 1], scenario.iterations) for n in range(len(planned))]
    return _svg("The stages of MAPA, step by step", panels, 150)


def _stage_panel(planned: Sequence[tuple[int, Stage]], total: int) -> Iterator[str]:
    start, stage = planned[-1]
    end = min(start + stage.length - 1, total)
    yield _text(
        _LEFT,
        22,
        f"Stage {stage.index}: updates {start} to {end:,}, C = {stage.clip:g}, γ = {stage.learning_rate:.4f}",
        size=14,
        weight="bold",
    )
    first = planned[0][1].clip
    yield _text(8, 44, "bound C")
    for begin, one in planned:
        left, right = _at(begin, total), _at(min(begin + one.length, total), total)
        tall = 88 * one.clip / first
        colour = _COLOURS[0] if one is stage else _PALE
        place = f'x="{left:.1f}" y="{128 - tall:.1f}" width="{right - left:.1f}" height="{tall:.1f}"'
        yield f'<rect {place} fill="{colour}"/>'
        yield _text((left + right) / 2, 122 - tall, f"{one.clip:g}", size=11, anchor="middle")
    yield _line(_LEFT, 128, _WIDTH - 20, 128, _INK, 1)
    for tick in (1, 10, 100, 1000, total):
        yield _text(_at(tick, total), 144, f"{tick:,}", size=11, anchor="middle")
    yield _text(8, 144, "update t", size=11)


def _at(t: int, total: int) -> float:
    """Return where update t lies on a logarithmic axis."""
    return _LEFT + (_WIDTH - 30 - _LEFT) * math.log(t) / math.log(total)


def _x(time: float, end: float) -> float:
    return _LEFT + (_WIDTH - 50 - _LEFT) * time / end


def _lane(edge: int) -> int:
    return 48 + (edge + 1) * _LANE


def _mark(x: float, words: str) -> str:
    dot = f'<circle cx="{x:.1f}" cy="48" r="3.5" fill="{_INK}"/>'
    return dot + _text(x, 41, words, size=11, anchor="middle")


def _small(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" stroke="{colour}" stroke-width="{width:g}"/>'
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    weight: str = "normal",
    fill: str = _INK,
    anchor: str = "start",
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _svg(title: str, panels: Sequence[Iterable[str]], panel_height: int) -> str:
    """Return the panels one below the other."""
    height = len(panels) * panel_height
    parts = [
        f'<g transform="translate(0 {number * panel_height})">{"".join(panel)}</g>'
        for number, panel in enumerate(panels)
    ]
    box = f'viewBox="0 0 {_WIDTH} {height}" font-family="system-ui, sans-serif"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    ground = f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *parts, "</svg>"]) + "\n"


def pictures() -> dict[str, str]:
    """Return every picture by its file's name."""
    return {"asynchrony.svg": asynchrony(first_turns()), "stages.svg": stages()}


def main(arguments: Sequence[str]) -> None:
    for name, picture in pictures().items():
        (Path(arguments[0]) / name).write_text(picture, encoding="utf-8")
        print(f"wrote {name}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
