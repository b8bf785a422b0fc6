"""Edges that have users of their own on the broker: the user's name is the edge's id, and its ledger's."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigurationError
from common.messages import Presence, Refuse
from common.quantities import EdgeId, RunId
from common.transport.connection import BrokerAddress, Credentials, TlsFiles
from common.wire.codec import encode
from edge.fleet import EdgeFleet, FleetSettings
from edge.session import EXIT_REFUSED
from edge.sqlite_ledger import SqliteLedger
from edge.state_directory import StateDirectory
from mapa.commands.options import accounts_in


def test_each_living_edge_takes_an_account_of_its_own(tmp_path: Path) -> None:
    names, state = ["lab-0", "lab-1"], StateDirectory(tmp_path)
    first, second = state.take(names), state.take(names)
    assert [first.name, second.name] == names
    with pytest.raises(ConfigurationError, match="all 2 places are taken"):
        state.take(names)
    first.close()
    assert state.take(names).name == "lab-0"


def test_a_new_ledger_takes_the_name_and_keeps_it(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path, EdgeId("lab-0")) as ledger:
        assert ledger.edge_id == "lab-0"
    with SqliteLedger(tmp_path) as ledger:
        assert ledger.edge_id == "lab-0"
    with pytest.raises(ConfigurationError, match=r"of edge 'lab-0', not of 'lab-1'"):
        SqliteLedger(tmp_path, EdgeId("lab-1"))


def test_a_folder_of_accounts(tmp_path: Path) -> None:
    (tmp_path / "lab-1").write_text("one\nignored\n")
    (tmp_path / "lab-0").write_text("zero")
    (tmp_path / ".hidden").write_text("no account")
    assert accounts_in(tmp_path, Credentials()) == {
        "lab-0": Credentials(username="lab-0", password="zero"),
        "lab-1": Credentials(username="lab-1", password="one"),
    }


def test_a_folder_of_identities(tmp_path: Path) -> None:
    for name in ("key.pem", "cert.pem", "ca.pem"):
        (tmp_path / "lab-0").mkdir(exist_ok=True)
        (tmp_path / "lab-0" / name).touch()
    (only,) = accounts_in(tmp_path, Credentials()).values()
    files = TlsFiles.identity(tmp_path / "lab-0")
    assert only == Credentials(tls=files, identity=tmp_path / "lab-0")
    (unproven,) = accounts_in(tmp_path, Credentials(), authentic=False).values()
    assert unproven == Credentials(tls=files)
    (tmp_path / "lab-0" / "ca.pem").unlink()
    with pytest.raises(ConfigurationError, match=r"ca\.pem.*no such file"):
        accounts_in(tmp_path, Credentials())


@pytest.mark.parametrize("name", ["two words", "a+b"])
def test_a_name_that_cannot_be_an_edge_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("password")
    with pytest.raises(ConfigurationError, match="edge id"):
        accounts_in(tmp_path, Credentials())


def test_a_folder_without_accounts_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match="--accounts"):
            accounts_in(folder, Credentials())


@pytest.mark.slow
def test_a_lost_ledger_ends_its_edge_alone_and_the_name_stays(tmp_path: Path) -> None:
    accounts = {name: Credentials(username=name, password="x") for name in ("lab-0", "lab-1")}
    settings = FleetSettings(
        run=RunId("r"),
        broker=BrokerAddress("127.0.0.1", 1),
        data_dir=tmp_path,
        state_dir=tmp_path / "state",
        count=2,
        accounts=accounts,
    )
    said: list[str] = []
    for _ in range(2):  # the second time as the first: nothing was saved that a restart trips over
        fleet = EdgeFleet(settings, said.append)
        fleet._enlist()
        fleet._enlist()
        loser, other = fleet.clients
        loser.on_connected()  # no broker is there: only its word is played
        loser.on_presence("cloud", encode(Presence(True, "c" * 16, 1)))
        words = "the ledger has 0 releases, but 5 were applied"
        refuse = Refuse(loser.edge_id, "ledger-lost", words, loser.nonce, loser.session.hellos, 1, 5)
        loser.on_answer("welcome", encode(refuse))
        fleet.loop.serve(lambda: False, until=fleet.loop.now() + 0.05)
        assert (loser.exit_code, other.exit_code) == (EXIT_REFUSED, None)
        assert [client.edge_id for client in fleet.clients] == ["lab-0", "lab-1"]
        other.leave("shutdown")
        fleet._release()
    assert "Restore" in said[0]
