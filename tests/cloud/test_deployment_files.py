"""What the files of a deployment say about the cloud."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mapa.container import SERVICES, service

ROOT = Path(__file__).parents[2]


def cloud_service(file: str) -> str:
    text = (ROOT / file).read_text().partition("\n  cloud:\n")[2]
    return re.split(r"^(?:  )?\w", text, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("file", "never"),
    [
        ("docker-compose.yml", 'restart: "no"'),
        ("docker/cloud.yml", 'restart: "no"'),
        ("docker/stack.yml", "condition: none"),
    ],
)
def test_nobody_starts_a_cloud_again_under_the_same_run(file: str, never: str) -> None:
    service = cloud_service(file)
    assert re.findall(r"(?:restart|condition): (?!service_).*", service) == [never]


def test_a_cloud_on_swarm_waits_for_data_and_broker_by_itself() -> None:
    text = cloud_service("docker/stack.yml")
    steps = re.findall(r"mapa\.container (\w+)", text)
    assert steps == ["data", "cloud"]
    assert set(steps) <= set(SERVICES)
    patience = re.search(r'CONNECT_TIMEOUT: "(\d+)"', text)
    assert patience is not None
    _, options = service("cloud", {"CONNECT_TIMEOUT": patience[1]})
    assert options["MAPA_CONNECT_TIMEOUT"] == patience[1]
    assert "disable: true" in text
