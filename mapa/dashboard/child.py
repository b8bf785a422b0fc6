"""The page beside a run: `mapa dashboard` as a child process that ends with it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigurationError
from mapa.option_variables import without_options
from mapa.process_run import one_thread_each
from mapa.processes import ends_with_parent

_PATIENCE = 5.0  # seconds for a child that was told to go


@dataclass(frozen=True, slots=True)
class PageBeside:
    """A page that is being served."""

    address: str
    child: subprocess.Popen[str]

    def stay(self) -> None:
        """Wait for Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self.child.wait()


@contextlib.contextmanager
def page_beside(runs: Path) -> Iterator[PageBeside]:
    """Serve the page of a folder, on port 8080 or the next free one; stop it at the end."""
    runs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "mapa.cli", "dashboard", "--runs-dir", str(runs)]
    child = subprocess.Popen(
        ends_with_parent(command),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=without_options(one_thread_each()),
        text=True,
        start_new_session=True,  # Ctrl-C is the run's to pass on
    )
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        address = re.search(r"http://\S+", line)
        if address is None:
            raise ConfigurationError(f"--dashboard: {(line + child.stderr.read()).strip()}")
        yield PageBeside(address[0], child)
    finally:
        child.terminate()
        try:
            child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stderr is not None:
            child.stderr.close()
