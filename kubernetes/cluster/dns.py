"""Names of Services for a cluster without CoreDNS: NAME.NAMESPACE.svc.cluster.local, as the API server lists them."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading

_HEADER, _A = struct.Struct("!6H"), 1
_EVERY = 1.0  # seconds between two looks at the Services


def question(packet: bytes) -> tuple[str, int, int]:
    """Return name, type and end of a query's one question; IndexError where there is none."""
    labels, at = [], _HEADER.size
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    if at + 5 > len(packet):
        raise IndexError
    return ".".join(labels), int.from_bytes(packet[at + 1 : at + 3], "big"), at + 5


def answer(packet: bytes, known: dict[str, str]) -> bytes:
    """Return the reply: an address, nothing of another type, or that there is no such name."""
    name, kind, end = question(packet)
    address = known.get(name)
    found = address is not None and kind == _A
    flags = 0x8580 if address is not None else 0x8583  # authoritative, recursion available; NXDOMAIN
    header = _HEADER.pack(int.from_bytes(packet[:2], "big"), flags, 1, int(found), 0, 0)
    record = b"\xc0\x0c" + struct.pack("!HHIH", _A, 1, 1, 4) + socket.inet_aton(address or "0.0.0.0")
    return header + packet[_HEADER.size : end] + (record if found else b"")


def services(kubectl: list[str]) -> dict[str, str]:
    done = subprocess.run(
        [*kubectl, "get", "services", "-A", "-o", "json"], capture_output=True, check=True, timeout=30
    )
    return {
        f"{one['metadata']['name']}.{one['metadata']['namespace']}.svc.cluster.local": one["spec"][
            "clusterIP"
        ]
        for one in json.loads(done.stdout)["items"]
        if one["spec"].get("clusterIP") not in (None, "", "None")
    }


def main(address: str, *kubectl: str) -> None:
    """ADDRESS KUBECTL...: serve UDP port 53 of an address."""
    known: dict[str, str] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(_EVERY):
            try:
                known.update(services(list(kubectl)))
            except (subprocess.SubprocessError, ValueError) as error:
                print(f"dns: {error}", flush=True)

    threading.Thread(target=look, daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            packet, sender = server.recvfrom(512)
            try:
                server.sendto(answer(packet, known), sender)
            except (IndexError, UnicodeDecodeError):
                continue  # not a question


if __name__ == "__main__":
    main(*sys.argv[1:])
