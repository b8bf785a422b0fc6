"""Hosts as network namespaces with cables between them; `network` in conftest.py makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.program_support import environment


@dataclass
class Host:
    """A network namespace with a folder in which commands of the page are typed into a shell."""

    name: str
    folder: Path
    hosts: dict[str, str] = field(default_factory=dict)  # names that it knows, beside localhost
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def words(self, command: str) -> list[str]:
        known = self.folder / ".hosts"
        known.write_text(
            "".join(f"{at} {name}\n" for name, at in {"localhost": "127.0.0.1", **self.hosts}.items())
        )
        inside = f"mount --bind {known} /etc/hosts && exec {command}"  # `ip netns exec` has mounts of its own
        return ["ip", "netns", "exec", self.name, "sh", "-c", inside]

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Type a command into a terminal of its own."""
        log = (self.folder / f"{len(self.children)}.log").open("wb")
        with log:
            child = subprocess.Popen(
                self.words(command), cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        self.children.append(child)
        return child

    def log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in environment().items() if not name.startswith(("XDG_", "MAPA_"))
        }
        path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/sbin", os.environ["PATH"]))
        return {**kept, "PATH": path, "HOME": str(self.folder)}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def cable(one: Host, other: Host, network: str) -> None:
    """Connect two hosts: the first is network.1, the second network.2."""
    name = f"to-{network.rpartition('.')[2]}"
    ip("link", "add", name, "netns", one.name, "type", "veth", "peer", "name", name, "netns", other.name)
    for number, end in enumerate((one, other), start=1):
        ip("-n", end.name, "addr", "add", f"{network}.{number}/24", "dev", name)
        ip("-n", end.name, "link", "set", "dev", name, "up")
