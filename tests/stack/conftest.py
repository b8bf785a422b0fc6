"""A real engine for the stack tests; they share one worker, since they share the machine's containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from experiments.testbed import connect

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.stack)
            item.add_marker(pytest.mark.xdist_group("stack"))
            item.add_marker(pytest.mark.timeout(600))


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
    missing = {"mapa-cloud", "mapa-edge", "mapa-edge-cnn", "eclipse-mosquitto:2"} - present
    if missing:
        pytest.fail(f"images {sorted(missing)} are missing: run `make images` (or `make images-offline`)")
