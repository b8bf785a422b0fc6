"""The manifests: one set of objects from Kustomize and Helm, valid for several versions of Kubernetes, and closed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mapa.kubernetes_run import EDGE, MANIFESTS, Fleet
from mapa.processes import CLOUD
from mapa.processes import EDGE as EDGE_VARIABLES
from tests.cluster.manifests_support import KUBERNETES, PLACES, Objects, chart, kustomized, pods, tool
from tests.program_support import run_program

pytestmark = pytest.mark.slow
VERSIONS = ("1.25", "1.31", "1.37")
_OTHERS = {"SCENARIO", "SET", "DATA", "MESSAGE_SIZE_LIMIT", "RESTARTS", "MAPA_DATA_MIRROR"}


def assert_valid(objects: Objects) -> None:
    validation = pytest.importorskip("kubernetes_validate")
    for version in VERSIONS:
        for name, one in objects.items():
            try:
                validation.validate(one, version, strict=True)
            except validation.ValidationError as error:
                pytest.fail(f"{name} in Kubernetes {version}: {error.message} at {list(error.path)}")


@pytest.mark.parametrize("place", PLACES)
def test_kustomize_and_helm_render_the_same_valid_objects(place: str) -> None:
    objects = kustomized(MANIFESTS / place)
    assert objects == chart(*PLACES[place])
    assert_valid(objects)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    objects = kustomized(MANIFESTS / "single-node")
    objects["StatefulSet", "edge"]["spec"]["replica"] = 5
    with pytest.raises(pytest.fail.Exception, match="replica"):
        assert_valid(objects)


@pytest.mark.parametrize("place", PLACES)
def test_every_container_is_closed_limited_and_watched(place: str) -> None:
    objects = kustomized(MANIFESTS / place)
    assert {name for name, _ in pods(objects)} >= {"cloud", "edge"}
    for name, pod in pods(objects):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in (*pod.get("initContainers", ()), *pod["containers"]):
            own = one["securityContext"]
            assert own["readOnlyRootFilesystem"], (name, one["name"])
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= one["resources"]["requests"].keys()
            assert "memory" in one["resources"]["limits"]
        main = pod["containers"][0]
        assert {"readinessProbe", "livenessProbe"} <= main.keys(), name


@pytest.mark.parametrize("place", PLACES)
def test_nothing_secret_is_in_a_manifest_and_nothing_blocks_a_drain(place: str) -> None:
    objects = kustomized(MANIFESTS / place)
    kinds = {kind for kind, _ in objects}
    assert not kinds & {"Secret", "PodDisruptionBudget", "Ingress", "ClusterRole", "Role"}
    run = objects["ConfigMap", "run"]["data"]
    assert run.keys() <= {*CLOUD, *EDGE_VARIABLES, *_OTHERS} - {"ENROL"}
    assert not [key for key in run if re.search("PASSWORD|KEY|TOKEN|ENROL", key)]
    assert objects["NetworkPolicy", "closed"]["spec"]["podSelector"] == {}
    for name, claim in (("cloud", "runs"), ("edge", "state")):
        owner = objects["StatefulSet", name]["spec"]
        assert [one["metadata"]["name"] for one in owner["volumeClaimTemplates"]] == [claim]
        mounted = {one["name"] for one in owner["template"]["spec"]["containers"][0]["volumeMounts"]}
        assert claim in mounted
    assert objects["StatefulSet", "cloud"]["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    "image",
    [
        "mapa-edge",
        "eclipse-mosquitto:2",
        "lab:5000/a/mapa-edge",
        "lab:5000/a/mapa-edge:1",
        "a/b@sha256:" + "0" * 64,
    ],
)
def test_an_image_of_any_form_is_what_runs(tmp_path: Path, image: str) -> None:
    fleet = Fleet(
        MANIFESTS / "single-node",
        1,
        {},
        {"mapa-edge-cnn": image},
        dict.fromkeys((EDGE, "cloud", "broker"), "1Gi"),
    )
    fleet.write(tmp_path, "here")
    edge = kustomized(tmp_path)["StatefulSet", "edge"]["spec"]["template"]["spec"]
    assert edge["containers"][0]["image"] == image


def test_a_run_is_told_to_an_overlay_and_renders(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("edges = 20\n")
    fleet = Fleet(
        overlay=MANIFESTS / "single-node",
        edges=20,
        variables={"RUN": "lab", "SET": 'links=[{name = "wan"}]; model.name=svm'},
        images={"mapa-cloud": "registry.example.org/mapa-cloud", "mapa-edge-cnn": "mapa-edge"},
        memory={EDGE: "600Mi", "cloud": "3Gi", "broker": "300Mi"},
        files=(tmp_path / "mine.toml",),
    )
    place = tmp_path / "place"
    place.mkdir()
    fleet.write(place, "here")
    objects = kustomized(place)
    assert_valid(objects)
    assert objects["ConfigMap", "run"]["data"]["SET"] == 'links=[{name = "wan"}]; model.name=svm'
    assert objects["ConfigMap", "scenarios"]["data"] == {"mine.toml": "edges = 20\n"}
    edge: dict[str, Any] = objects["StatefulSet", "edge"]["spec"]
    assert edge["replicas"] == 20
    assert edge["template"]["spec"]["containers"][0]["image"] == "mapa-edge"
    assert edge["template"]["spec"]["containers"][0]["resources"]["limits"] == {"memory": "600Mi"}
    assert {one["metadata"]["namespace"] for one in objects.values()} == {"here"}
    secrets = {name: one["data"].keys() for (kind, name), one in objects.items() if kind == "Secret"}
    assert secrets["cloud"] == {"key.pem", "cert.pem", "ca.pem", "edges.pem"}
    assert {"edge-0.key.pem", "edge-19.cert.pem", "ca.pem"} <= secrets["edges"]
    assert {"mosquitto.conf", "acl", "server.pem", "server.key"} <= secrets["broker"]
    assert not [
        key for keys in secrets.values() for key in keys if "authority" in key or key.startswith("edges.key")
    ]


def test_the_chart_refuses_a_placement_that_it_does_not_know() -> None:
    done = run_program(tool("helm"), "template", "mapa", KUBERNETES / "chart", "--set", "placement=moon")
    assert done.returncode != 0
    assert "must be single-node or several-nodes" in done.stderr
