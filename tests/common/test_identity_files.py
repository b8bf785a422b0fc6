"""Guards from files: what must be there, and lists of what was revoked, which are read again while a service runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.errors import ConfigurationError, ForgedMessageError
from common.quantities import EdgeId, RunId
from common.transport import identity
from common.wire.topics import EdgeTopic
from mapa.authority import Authority, Role
from mapa.broker_files import write_revocations
from tests.guard_support import LIFE, Members


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Members:
    monkeypatch.setattr(identity, "_LOOK_EVERY", 0.0)
    made = Members(Authority.create(tmp_path / "authority", ["localhost"]))
    for name, role in (("cloud", Role.CLOUD), ("e1", Role.EDGE)):
        made.identity(name, role).write(tmp_path / name)
    return made


def test_who_is_revoked_while_the_cloud_runs_is_heard_no_more(members: Members, tmp_path: Path) -> None:
    cloud = identity.cloud_guard(tmp_path / "cloud", RunId("r"), LIFE, "0" * 16)
    edge = members.edge("e1")
    edge.join(cloud)
    topic, crl = edge.topic(EdgeTopic.GRADIENT), tmp_path / "cloud" / "edges.crl"
    cloud.open(topic, edge.gradient())
    crl.write_bytes(b"half")
    cloud.open(topic, edge.gradient())
    members.authority.revoke("e1")
    write_revocations(tmp_path / "broker", members.authority)
    os.utime(crl, ns=(1, 1))  # another time than that of the list before, however coarse the clock
    with pytest.raises(ForgedMessageError, match="revoked"):
        cloud.open(topic, edge.gradient())
    crl.unlink()
    with pytest.raises(ForgedMessageError, match="revoked"):
        cloud.open(topic, edge.gradient())


def test_a_list_that_another_authority_signed_is_none(members: Members, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", ["localhost"])
    (tmp_path / "cloud" / "edges.crl").write_bytes(other.revocations("edges"))
    with pytest.raises(ConfigurationError, match="not signed by the authority of edges"):
        identity.cloud_guard(tmp_path / "cloud", RunId("r"), LIFE, "0" * 16)
    (tmp_path / "cloud" / "edges.crl").write_bytes(members.authority.revocations("edges"))
    assert identity.cloud_guard(tmp_path / "cloud", RunId("r"), LIFE, "0" * 16)


def test_an_identity_serves_the_one_that_it_names(members: Members, tmp_path: Path) -> None:
    assert identity.name_of(tmp_path / "e1") == "e1"
    assert not (tmp_path / "e1" / "edges.pem").exists()
    identity.edge_guard(tmp_path / "e1", RunId("r"), EdgeId("e1"), "0" * 16)
    with pytest.raises(ConfigurationError, match="is the identity of 'e1', not of 'e2'"):
        identity.edge_guard(tmp_path / "e1", RunId("r"), EdgeId("e2"), "0" * 16)
    members.identity("e1").write(tmp_path / "both")
    (tmp_path / "both" / "edges.pem").write_bytes((tmp_path / "cloud" / "edges.pem").read_bytes())
    with pytest.raises(ConfigurationError, match="is the identity of 'e1', not of 'cloud'"):
        identity.cloud_guard(tmp_path / "both", RunId("r"), LIFE, "0" * 16)
    (tmp_path / "cloud" / "edges.pem").unlink()
    with pytest.raises(ConfigurationError, match=r"edges\.pem: cannot be read"):
        identity.cloud_guard(tmp_path / "cloud", RunId("r"), LIFE, "0" * 16)
