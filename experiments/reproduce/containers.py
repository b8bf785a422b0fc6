"""Whether the testbed's runs are containers or processes: what was asked for, and what this machine can do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from common.errors import ConfigurationError

TESTBEDS = ("auto", "containers", "processes")


def choose_containers(wanted: str, size: str, lacking: Callable[[], str | None]) -> tuple[bool, str]:
    """Return whether to take containers, and why not where one might expect them.

    `auto` takes them at full size alone: quick must end in minutes. `lacking` says what is missing here.
    """
    if wanted not in TESTBEDS:
        raise ConfigurationError(f"testbed = {wanted!r}: allowed are {', '.join(TESTBEDS)}")
    if wanted == "processes" or (wanted == "auto" and size != "full"):
        return False, ""
    missing = lacking()
    if missing is None:
        return True, ""
    if wanted == "containers":
        raise ConfigurationError(f"testbed = 'containers': {missing}; or use --testbed processes")
    return False, missing


def lacking_here() -> str | None:
    """Return what containers lack on this machine and what to do about it; None: nothing."""
    try:
        from mapa.container_run import Images, connect  # the docker library is an extra
    except ImportError:
        return "the docker library is not installed (pip install 'mapa-testbed[containers]')"
    try:
        client = connect()
    except ConfigurationError as error:
        return str(error)
    with contextlib.closing(client):
        present = {tag for image in client.images.list() for tag in image.tags}
    needed = Images()
    missing = [
        name for name in (needed.cloud, needed.edge, needed.broker) if not present & {name, f"{name}:latest"}
    ]
    return f"no image {', '.join(missing)} (`make images` builds the images)" if missing else None
