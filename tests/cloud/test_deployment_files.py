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
    ("file", "policy"),
    [
        ("docker-compose.yml", "restart: on-failure:5"),
        ("docker/cloud.yml", "restart: on-failure:5"),
        ("docker/stack.yml", "condition: on-failure"),
    ],
)
def test_a_cloud_that_was_killed_is_started_again_and_one_that_ended_well_is_not(
    file: str, policy: str
) -> None:
    service = cloud_service(file)
    assert re.findall(r"(?:restart|condition): (?!service_).*", service) == [policy]
    assert re.search(r"[:}]/runs$|:/runs\n", service, re.MULTILINE), "its records must outlive the container"


def test_a_task_of_swarm_names_its_service_since_its_host_name_changes() -> None:
    assert 'STARTED_BY: "{{.Service.ID}}"' in cloud_service("docker/stack.yml")
    for file in (
        "docker-compose.yml",
        "docker/cloud.yml",
    ):  # a container keeps its id when it is started again
        assert "STARTED_BY" not in cloud_service(file)


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
