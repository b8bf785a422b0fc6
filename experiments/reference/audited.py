"""Audit each release mechanism of the reference table, claimed ε beside a lower bound from attacks: audited.csv.

Methods whose edges release alike share one audit: `mapa audit` on the scenario of the first of them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.accounting.releases import ReleaseKind
from common.datasets.catalogue import load_dataset
from common.scenario.scenario import Scenario
from experiments.audit.battery import scenario_games
from experiments.audit.game import Finding, Game, play_all
from experiments.audit.one_run import OneRun, audit_one_run
from experiments.harness import markdown_table, read_values
from experiments.reference.cells import (
    MAIN,
    Choice,
    Chosen,
    Group,
    TableCell,
    choice_for,
    methods,
    sizes,
    units,
)
from mapa.run_parts import assemble
from mapa.scenario_files import load_scenario
from mapa.simulation.simulator import World

CONFIDENCE = 0.95  # of all games of a mechanism together, and of the training run
NONE = "none"  # of the games refutes
_AUDITED = "fashion"  # where a size has it
_EDGES, _EDGE, _SEED = 5, 0, 1
_CANARIES = 1000
_ROUNDS = {"tiny": 1000}  # of each world in a game; the least that `mapa audit` takes
_MOST_ROUNDS = 8000
_WHOLE = "a whole training run"


@dataclass(frozen=True, slots=True)
class Audit:
    cell: TableCell  # of the first of its methods
    choice: Choice
    kind: ReleaseKind
    methods: tuple[str, ...]
    data_dir: Path
    rounds: int

    def scenario(self) -> tuple[Scenario, list[str]]:
        """Return the method's scenario, and the changes of the recipe that give it.

        The edges are in turn, as in the recipe: what one message tells does not depend on links, and each edge's last
        message is then the last that its budget permits.
        """
        rate, length = units(self.cell, self.data_dir)
        _, words = self.cell.scenario(self.choice, rate=rate, length=length)
        own = [word for word in words if not word.startswith("delays.")] + [f"seed={self.cell.seed}"]
        return load_scenario(self.cell.recipe, own)[1], own

    @property
    def mechanism(self) -> str:
        """Its name, in the scenario's own words."""
        mechanism = self.kind.mechanism
        return mechanism.clipping.name + (f", {mechanism.steps} local steps" if mechanism.steps > 1 else "")

    def run(self) -> list[Audited]:
        """Play the games of `mapa audit`, then train once with canaries."""
        scenario, words = self.scenario()
        world, most = World.of(scenario, self.data_dir), scenario.iterations
        games = scenario_games(world, edge=_EDGE, rounds=self.rounds)
        findings = play_all(games, confidence=CONFIDENCE, seed=0)
        whole = audit_one_run(world, edge=_EDGE, canaries=_CANARIES, iterations=most, confidence=CONFIDENCE)
        options = {"--rounds": self.rounds, "--canaries": _CANARIES, "--iterations": most}
        given = [*options.items(), *(("--set", word) for word in words)]
        command = ["mapa", "audit", self.cell.recipe, *(str(part) for pair in given for part in pair)]
        return [row_of(self, games, findings, whole, digest=scenario.digest, command=shlex.join(command))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What the table says of one mechanism; the columns of its CSV."""

    mechanism: str
    methods: str  # with spaces between; the first one is trained in the audit of a whole run
    recipe: str
    noise: str  # the law and its parameters
    batches: str
    game: str  # one release with the canary in its batch, or one message of several
    figure: str  # μ or ε
    claimed: float
    at_least: float
    claimed_epsilon: float  # the same at δ
    epsilon_at_least: float
    run_claimed_epsilon: float  # of a whole training run at δ
    run_epsilon_at_least: float
    run_messages: int
    run_canaries: int
    delta: float
    rounds: int  # of each world in a game
    games: int  # that were played in all
    confidence: float
    refuted: str  # games whose claim is refuted, with semicolons between
    digest: str  # of the scenario
    command: str

    @property
    def is_refuted(self) -> bool:
        return self.refuted != NONE


def audits_of(size_name: str, chosen: Mapping[Group, Chosen], data_dir: Path) -> list[Audit]:
    """Return one audit for each way in which edges release at the main budget, with all methods that do it."""
    size = sizes()[size_name]
    data = _AUDITED if _AUDITED in size.data else size.data[0]
    place: dict[str, Any] = {"data": data, "edges": _EDGES, "epsilon": MAIN, "links": size.links[0]}
    used = [method for method in methods() if method in size.every]
    every = [TableCell(method=method, seed=_SEED, size=size_name, **place) for method in used]
    cells = [cell for cell in every if methods()[cell.method].has(cell)]
    rate, length = units(cells[0], data_dir)  # of the recipe, which all of them share
    by_kind: dict[str, list[tuple[TableCell, Choice, ReleaseKind]]] = {}
    for cell in cells:
        choice = choice_for(cell, chosen)
        scenario, _ = cell.scenario(choice, rate=rate, length=length)
        parts = assemble(scenario, partial(load_dataset, data_dir=data_dir), None, data_dir)
        mechanism = parts.scenario.mechanism(parts.scenario.law(_EDGE))
        kind = ReleaseKind(mechanism, parts.shard_sizes[_EDGE])
        by_kind.setdefault(repr(kind.fields()), []).append((cell, choice, kind))
    rounds = _ROUNDS.get(size_name, _MOST_ROUNDS)
    return [
        Audit(*alike[0], tuple(cell.method for cell, _, _ in alike), data_dir, rounds)
        for alike in by_kind.values()
    ]


def row_of(
    audit: Audit,
    games: Sequence[Game],
    findings: Sequence[Finding],
    whole: OneRun,
    *,
    digest: str,
    command: str,
) -> Audited:
    kind, law, mechanism = audit.kind, audit.kind.law, audit.kind.mechanism
    # `scenario_games` has one release first, then a message where that is more
    place = 1 if mechanism.steps > 1 else 0
    shown, claim = findings[place], games[place].claim
    refuted = [finding.name for finding in findings if finding.violated] + [_WHOLE] * whole.violated
    parameters = {} if law is None else law.parameters
    return Audited(
        mechanism=audit.mechanism,
        methods=" ".join(audit.methods),
        recipe=audit.cell.recipe,
        noise=" ".join([law.name if law else "no", *(f"{k}={v:.4g}" for k, v in parameters.items())]),
        batches=f"{mechanism.sampler.name} {mechanism.batch_size} of {kind.shard_size}",
        game=shown.name,
        figure=shown.figure,
        claimed=shown.claimed,
        at_least=shown.lower_bound,
        claimed_epsilon=claim.epsilon(shown.claimed, whole.delta),
        epsilon_at_least=claim.epsilon(shown.lower_bound, whole.delta),
        run_claimed_epsilon=whole.claimed,
        run_epsilon_at_least=whole.lower_bound,
        run_messages=whole.releases,
        run_canaries=whole.canaries,
        delta=whole.delta,
        rounds=audit.rounds,
        games=len(findings),
        confidence=whole.confidence,
        refuted="; ".join(refuted) or NONE,
        digest=digest,
        command=command,
    )


def read_audited(path: Path) -> list[Audited]:
    return read_values(path, Audited, {"": math.inf})  # infinite: nothing is claimed


def audited_table(rows: Sequence[Audited]) -> str:
    """Return one line for each mechanism: claimed → at least."""
    heads = ["release", "methods", "one message, canary in its batch", "as ε at δ", _WHOLE, "refuted"]
    lines = [
        [
            row.mechanism,
            ", ".join(f"`{name}`" for name in row.methods.split()),
            f"{row.figure} {_figure(row.claimed)} → {_figure(row.at_least)}",
            f"{_figure(row.claimed_epsilon)} → {_figure(row.epsilon_at_least)}",
            f"ε {_figure(row.run_claimed_epsilon)} → {_figure(row.run_epsilon_at_least)}"
            f" ({row.run_messages} messages, {row.run_canaries:,} canaries)",
            f"**REFUTED**: {row.refuted}" if row.is_refuted else "no",
        ]
        for row in rows
    ]
    return markdown_table(heads, lines)


def section(rows: Sequence[Audited]) -> str:
    """Return the part of table.md that shows them, with the command of each; nothing where there are none."""
    if not rows:
        return ""
    settings = dict.fromkeys(
        f"`{row.recipe}`, {row.noise}, {row.batches}, {row.rounds:,} rounds a game,"
        f" {100 * row.confidence:g} %, δ = {row.delta:g}"
        for row in rows
    )
    commands = [f"- {row.mechanism}: `{row.command}`" for row in rows]
    lines = ["", "### Audited: claimed → at least", "", *settings, "", audited_table(rows), "", *commands]
    return "\n".join(lines) + "\n"


def _figure(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3f}"
