"""A real engine for the stack tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from common.errors import ConfigurationError
from mapa.container_run import connect


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """A client of the engine; skip where none answers."""
    try:
        client = connect()
    except ConfigurationError as error:
        pytest.skip(str(error))
    yield client
    client.close()


@pytest.fixture(scope="session")
def images(engine: Any) -> None:
    """Our images, built before from these sources; a missing one is an error, not a reason to skip."""
    present = {tag.removesuffix(":latest") for image in engine.images.list() for tag in image.tags}
    ours = {"mapa-cloud", "mapa-edge", "mapa-edge-cnn", "mapa-edge-torch"}
    missing = {*ours, "eclipse-mosquitto:2"} - present
    if missing:
        pytest.fail(f"images {sorted(missing)} are missing: run `make images` (or `make images-offline`)")
