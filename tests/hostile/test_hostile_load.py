"""A seeded part of `python -m tests.hostile`, which sends more than a million."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import RemoteProtocolError
from common.messages import Hello
from common.quantities import EdgeId
from common.wire import codec
from tests.common.test_wire_codec import VALID
from tests.hostile.decoding import Target, decoder
from tests.hostile.live import Outcome, where_all_is_signed, with_our_configuration, without_rules
from tests.hostile.load import GROUPS, hostile_load
from tests.hostile.mutation import Form, Mutator
from tests.hostile.services import CloudBed
from tests.program_support import require_mosquitto


@pytest.mark.parametrize("group", GROUPS)
def test_mutants_are_taken_or_refused_and_what_is_refused_changes_nothing(group: str, tmp_path: Path) -> None:
    targets = list(GROUPS[group](tmp_path))
    load = hostile_load(7, 400 * len(targets), targets, blocks=1)
    assert load.faults == []
    assert set(load.sent.values()) == {400}


def test_a_cloud_that_keeps_something_of_a_refused_message_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed, honest = CloudBed(), codec.decode_hello

    def careless(edge_id: EdgeId, payload: bytes) -> Hello:
        bed.service.server.longest += 1.0
        return honest(edge_id, payload)

    monkeypatch.setattr(codec, "decode_hello", careless)
    load = hostile_load(
        1, 60, [target for target in bed.targets() if target.name == "cloud: hello"], blocks=1
    )
    assert any("the state has changed" in fault for fault in load.faults)


def test_a_target_that_raises_is_a_fault() -> None:
    def fails(payload: bytes) -> None:
        if len(payload) == 3:
            raise IndexError(payload)
        raise RemoteProtocolError("no")

    target = Target("planted", Form.OCTETS, lambda: [b"four"], lambda payload: bool(fails(payload)))
    load = hostile_load(1, 300, [target], blocks=1)
    assert any("IndexError" in fault for fault in load.faults)
    assert any("RemoteProtocolError" in fault for fault in load.faults)
    with pytest.raises(RemoteProtocolError):
        decoder("of nothing", Form.OCTETS, [b"x"], fails, KeyError)


def test_a_seed_has_its_mutants() -> None:
    message = VALID["hello"]
    first, second = ([Mutator(seed).mutant(message, Form.MAP) for _ in range(20)] for seed in (1, 1))
    assert first == second != [Mutator(2).mutant(message, Form.MAP) for _ in range(20)]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [with_our_configuration, where_all_is_signed, pytest.param(without_rules, marks=pytest.mark.extended)],
)
def test_a_run_under_mutants_on_every_topic_reaches_its_end(
    attack: Callable[[Path, int, int], Outcome], tmp_path: Path
) -> None:
    require_mosquitto()
    outcome = attack(tmp_path, 7, 1000)
    assert outcome.faults == []
    assert outcome.reached["refused"] + outcome.reached["dropped forged"] > 50
