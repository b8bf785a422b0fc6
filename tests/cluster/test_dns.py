"""The names that the test cluster's own DNS answers."""

from __future__ import annotations

import importlib.util
import socket
import struct

import pytest

from tests.program_support import ROOT

_SPEC = importlib.util.spec_from_file_location("cluster_dns", ROOT / "kubernetes" / "cluster" / "dns.py")
assert _SPEC is not None
assert _SPEC.loader is not None
dns = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(dns)
KNOWN = {"broker.lab.svc.cluster.local": "10.91.0.7"}


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!6H", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


@pytest.mark.parametrize(
    ("name", "kind", "code", "address"),
    [
        ("broker.lab.svc.cluster.local", 1, 0, "10.91.0.7"),
        ("BROKER.lab.svc.cluster.local", 1, 0, "10.91.0.7"),
        ("broker.lab.svc.cluster.local", 28, 0, None),  # there is such a name, and no IPv6 address of it
        ("broker.lab", 1, 3, None),
    ],
)
def test_a_service_is_known_by_its_full_name(name: str, kind: int, code: int, address: str | None) -> None:
    reply = dns.answer(query(name, kind), KNOWN)
    number, flags, questions, answers, *_ = struct.unpack("!6H", reply[:12])
    assert (number, flags & 0xF, questions, answers) == (77, code, 1, int(address is not None))
    if address is not None:
        assert socket.inet_ntoa(reply[-4:]) == address


@pytest.mark.parametrize("packet", [b"", b"\0" * 12, query("a", 1)[:-5], b"\0" * 12 + b"\xff"])
def test_what_is_no_question_is_told_apart(packet: bytes) -> None:
    with pytest.raises(IndexError):
        dns.question(packet)
