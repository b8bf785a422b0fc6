"""CloudServer and K EdgeWorkers with simulated delays and no network, one event at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cloud.assembly import server_for
from common.journal import Journal
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    EvaluationDue,
    GradientApplied,
    GradientRefused,
    Halt,
    Hello,
    Refuse,
    SendModel,
    StageOpened,
    Welcome,
)
from common.quantities import Vector
from common.tally import Tally
from experiments.delays import arrivals_for
from experiments.world import World

Progress = Callable[[Tally], None]


@dataclass(slots=True)
class Outcome:
    """What a simulation leaves behind."""

    tally: Tally
    x: Vector  # x_{T+1}
    releases: list[int]  # gradients made by edge k, those in flight at the halt included
    reason: str  # of the halt
    virtual_seconds: float | None = None
    diagnostics: list[dict[str, float | int]] = field(default_factory=list)


def simulate(
    world: World,
    journal: Journal | None = None,
    progress: Progress | None = None,
    *,
    progress_every: int = 200,
) -> Outcome:
    """Run the scenario to T. Ctrl-C halts it as `interrupted` and what was done stays valid."""
    run = _Simulation(world, journal)
    try:
        run.begin()
        while (due := run.arrivals.next()) is not None and run.halt is None:
            when, arrived = due
            if when is not None:
                run.now = when
            for effect in run.server.receive(arrived):
                run.perform(effect)
            if progress is not None and run.tally.updates % progress_every == 0:
                progress(run.tally)
    except KeyboardInterrupt:
        for effect in run.server.halt("interrupted"):
            run.perform(effect)
    return run.outcome()


class _Simulation:
    """The shell around the two cores."""

    def __init__(self, world: World, journal: Journal | None) -> None:
        self.world = world
        self.journal = journal
        self.workers = world.workers()
        self.by_id = {worker.edge_id: worker for worker in self.workers}
        self.server = server_for(world.scenario, world.model, world.streams, edges_at_least=len(self.workers))
        self.arrivals = arrivals_for(world.scenario.delays, world.streams)
        self.timed = world.scenario.delays.kind != "cyclic"
        self.tally = Tally()
        self.now = 0.0
        self.halt: Halt | None = None

    def begin(self) -> None:
        for worker in self.workers:
            for effect in self.server.receive(Hello(edge_id=worker.edge_id)):
                self.perform(effect)

    def perform(self, effect: Effect) -> None:
        match effect:
            case SendModel():
                worker = self.by_id[effect.edge_id]
                self.arrivals.send(worker.index, self.now, worker.receive(effect))
            case GradientApplied() | StageOpened() | EdgeJoined() | EdgeGone() | GradientRefused():
                self.tally.observe(effect)
                if self.journal is not None:
                    self.journal.fact(effect, self.now if self.timed else None)
            case EvaluationDue():
                self.evaluate(effect.model, effect.updates, effect.stage)
            case Halt():
                self.halt = effect
            case Welcome() | Refuse():
                pass

    def evaluate(self, x: Vector, updates: int, stage: int) -> None:
        evaluation = self.world.evaluator.evaluate(x, updates, stage)
        self.tally.evaluated(evaluation)
        if self.journal is not None:
            self.journal.write(
                "evaluated",
                {"t": updates, "stage": stage, "loss": evaluation.loss, "accuracy": evaluation.accuracy},
                self.now if self.timed else None,
            )

    def outcome(self) -> Outcome:
        server, evaluations = self.server, self.tally.evaluations
        if not evaluations or evaluations[-1].updates != server.updates:
            stage = server.schedule.stage if server.schedule is not None else 1
            self.evaluate(server.model, server.updates, stage)
        reason = self.halt.reason if self.halt is not None else "starved"
        if self.journal is not None:
            self.journal.write("halted", {"t": server.updates, "reason": reason})
        return Outcome(
            tally=self.tally,
            x=server.model,
            releases=[worker.sequence for worker in self.workers],
            reason=reason,
            virtual_seconds=self.now if self.timed else None,
        )
