"""Getting ready for a run: an edge keeps its shard of a data set alone, and hears what goes on meanwhile."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.accounting.releases import Budget
from common.datasets.dataset import Dataset, Samples
from common.messages import Presence, SendModel
from common.models.model import Model
from common.models.registry import make_model
from common.own_code import is_allowed, only_code
from common.scenario import parts
from common.transport.connection import BrokerAddress
from common.transport.loop import SelectorLoop
from common.wire.codec import encode, encode_model
from edge.fleet import BackgroundThread, EdgeFleet, FleetSettings
from edge.policy import OperatorPolicy
from edge.session import EXIT_DONE
from edge.sqlite_ledger import SqliteLedger
from tests.core_support import small_dataset, small_scenario, small_world
from tests.edge_support import CLOUD, LIFE, RUN, Stage, prepared, private_scenario, welcome_of
from tests.program_support import PATIENCE

ROWS, SHAPE, EDGES = 20_000, (8, 8), 20


class Source:
    """A large data set, and whether anybody still holds it."""

    def __init__(self, kind: type[np.generic]) -> None:
        self.kind = kind
        self.arrays: list[weakref.ref[Any]] = []

    def load(self, name: str) -> Dataset:  # noqa: ARG002
        train, test = self._samples(ROWS), self._samples(100)
        self.arrays = [weakref.ref(array) for part in (train, test) for array in (part.inputs, part.labels)]
        return Dataset("large", SHAPE, 10, train, test, "1" * 64)

    def _samples(self, count: int) -> Samples:
        images: Any = np.zeros((count, SHAPE[0] * SHAPE[1]), self.kind)
        return Samples(images, np.arange(count, dtype=np.int64) % 10)

    @property
    def held(self) -> bool:
        assert self.arrays, "never loaded"
        return any(array() is not None for array in self.arrays)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_an_edge_holds_its_shard_and_lets_the_data_set_go_before_its_model_is_made(
    monkeypatch: pytest.MonkeyPatch, kind: type[np.generic]
) -> None:
    source, held = Source(kind), []

    def make(*arguments: Any, **options: Any) -> Model:
        held.append(source.held)
        return make_model(*arguments, **options)

    monkeypatch.setattr(parts, "make_model", make)
    made = prepared(welcome_of(small_scenario(edges=EDGES), 3), load=source.load)
    assert held == [False]
    assert not source.held
    shard = made.worker.shard
    assert len(shard) == ROWS // EDGES
    for array in (shard.features, shard.targets, shard.rows):
        whole = array if array.base is None else array.base
        assert whole.nbytes <= 4 * len(shard) * (SHAPE[0] * SHAPE[1] + 1)


def test_the_edge_hears_and_ends_while_its_budget_is_accounted(tmp_path: Path) -> None:
    """What follows a welcome may take minutes; it goes on beside the loop, and no one else touches the ledger."""
    jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
    stage = Stage(ledger=SqliteLedger(tmp_path), background=lambda *job: jobs.append(job))
    stage.welcome()
    [(work, then)] = jobs
    assert stage.edge.progress.startswith("preparing")
    assert stage.edge.healthy()
    stage.edge.leave("shutdown")
    assert (stage.stops, stage.leaves) == ([0], ["shutdown"])
    then(work())
    assert stage.edge.preparation is not None
    assert stage.pushed == 0
    SqliteLedger(tmp_path).close()  # it was let go


@pytest.mark.parametrize("malformed", [False, True])
def test_a_model_that_comes_while_the_edge_prepares_is_used_or_dropped_afterwards(malformed: bool) -> None:
    jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
    stage = Stage(background=lambda *job: jobs.append(job))
    stage.welcome()
    x = np.zeros(small_world().model.dimension, np.float32)
    model = encode_model(SendModel(stage.edge.edge_id, 1, 0.4, 0, x, LIFE))
    stage.edge.on_model("m", model[malformed:])
    assert stage.pushed == 0
    [(work, then)] = jobs
    then(work())
    assert (stage.pushed, stage.edge.dropped["model"]) == ((0, 1) if malformed else (1, 0))
    stage.model()
    assert stage.pushed == 2 - malformed


def test_the_loop_goes_on_beside_a_job_and_raises_what_it_raised() -> None:
    gate, told = threading.Event(), []

    def fail() -> None:
        raise ZeroDivisionError

    with SelectorLoop() as loop:
        background = BackgroundThread(loop)
        background(gate.wait, told.append)
        loop.call_later(0.0, gate.set)  # the job waits for the loop
        assert loop.serve(lambda: told == [True], until=loop.now() + PATIENCE)
        with only_code(["a:B"]):
            background(lambda: is_allowed("c:D"), told.append)
        background(fail, told.append)
        with pytest.raises(ZeroDivisionError):
            loop.serve(lambda: False, until=loop.now() + PATIENCE)
        background.end(lambda: None)
    assert told == [True, False]


def test_an_end_does_not_wait_for_a_job_without_end_and_begins_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edge.fleet._LAST_JOB", 0.01)
    gate, done = threading.Event(), threading.Event()
    with SelectorLoop() as loop:
        background = BackgroundThread(loop)
        background(gate.wait, lambda _: None)
        background(done.set, lambda _: None)
        background.end(lambda: None)
        gate.set()
        background._thread.join()
    assert not done.is_set()


def test_sigterm_does_not_wait_for_the_accountant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def account(*_: object) -> int:
        asked.set()
        answer.wait()
        return 1

    monkeypatch.setattr("edge.fleet.max_charges_apart", account)
    monkeypatch.setattr("edge.fleet._LAST_JOB", 0.01)
    monkeypatch.setattr(EdgeFleet, "_load", lambda *_: small_dataset())
    settings = FleetSettings(
        run=RUN,
        broker=BrokerAddress("127.0.0.1", 1),  # none is there: only its word is played
        data_dir=tmp_path,
        state_dir=tmp_path / "state",
        policy=OperatorPolicy(budget=Budget(2.0, 1e-5), allow_seed=True),
    )
    fleet = EdgeFleet(settings, lambda _: None)
    fleet._enlist()
    [edge] = fleet.clients
    edge.on_connected()
    edge.on_presence("cloud", encode(Presence(True, CLOUD, LIFE)))
    known = {"nonce": edge.nonce, "number": edge.session.hellos, "incarnation": LIFE}
    edge.on_answer("welcome", encode(replace(welcome_of(private_scenario(), **known), edge_id=edge.edge_id)))
    fleet.loop.serve(lambda: asked.is_set() or edge.exit_code is not None)
    assert edge.exit_code is None
    fleet._leave(EXIT_DONE)
    assert edge.exit_code == EXIT_DONE
    fleet._release()
    answer.set()
