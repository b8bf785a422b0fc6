"""One scenario on a Kubernetes cluster, by `kubectl`: apply, follow, collect the records, remove."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError, MapaError
from mapa.authority import CLOUD, Authority, Role, members
from mapa.broker_files import write_broker

MANIFESTS = Path(__file__).parents[1] / "kubernetes" / "overlays"
EDGE = "edge"
_PART = "app.kubernetes.io/name"
_NEVER = (  # reasons for which a container waits in vain
    *("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"),
    *("CreateContainerConfigError", "CreateContainerError"),
)
_ENDED = re.compile(r"^\[pod/([^/]+)/[^]]+\] \w+: ended with exit code (\d+)", re.MULTILINE)
_SECRET = 900_000  # bytes of one Secret; the API server takes a megabyte


class KubernetesError(MapaError):
    """kubectl failed, or a pod cannot run; the message has its words."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace of the cluster that `kubectl` is set to, and what is asked there."""

    name: str

    def __call__(self, *words: str, text: str | None = None) -> str:
        """Return what kubectl prints."""
        command = ["kubectl", "--namespace", self.name, *words]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise ConfigurationError("kubectl: not found; it is how a cluster is reached") from error
        if done.returncode:
            raise KubernetesError(f"kubectl {words[0]}: {done.stderr.strip()[-1000:]}")
        return done.stdout

    def codes(self, part: str) -> dict[str, int]:
        """Return the exit codes of the pods of cloud or edges whose programs have ended, by pod."""
        words = ("--container", part, "--tail=1", "--prefix", "--ignore-errors", "--max-log-requests=1000")
        said = self("logs", f"--selector={_PART}={part}", *words)
        return {pod: int(code) for pod, code in _ENDED.findall(said)}

    def last_words(self, pod: str, container: str) -> str:
        with contextlib.suppress(KubernetesError):
            return self("logs", pod, "--container", container, "--tail=1").strip()
        return ""  # it does not run yet

    def check(self) -> None:
        """Raise KubernetesError where a container waits for what will not come."""
        for pod in json.loads(self("get", "pods", "--output=json"))["items"]:
            status = pod.get("status", {})
            for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
                waiting = one.get("state", {}).get("waiting", {})
                if waiting.get("reason") in _NEVER:
                    name, why = pod["metadata"]["name"], waiting.get("message", "")
                    raise KubernetesError(f"{name}: {one['name']}: {waiting['reason']}: {why}")

    def records(self, run: str, runs: Path) -> None:
        """Copy the records of a run from the cloud's claim."""
        command = ["kubectl", "--namespace", self.name, "exec", "cloud-0", "--container", "page", "--"]
        with subprocess.Popen(
            [*command, "tar", "-C", "/runs", "-cf", "-", "."], stdout=subprocess.PIPE
        ) as copy:
            assert copy.stdout is not None
            with tarfile.open(fileobj=copy.stdout, mode="r|") as archive:
                for member in archive:
                    if member.name.startswith(f"./{run}-"):
                        archive.extract(member, runs, filter="data")
        if copy.returncode:
            raise KubernetesError(f"cloud-0: its records could not be copied: exit code {copy.returncode}")


@dataclass(frozen=True, slots=True)
class Fleet:
    """What an overlay is told of one run."""

    overlay: Path
    edges: int
    variables: Mapping[str, str]  # of .env.example
    images: Mapping[str, str]  # by the names in the manifests
    memory: Mapping[str, str]  # limits, by container
    files: Sequence[Path] = ()  # a scenario of one's own, and its code

    def _kustomization(self, namespace: str, place: Path) -> dict[str, Any]:
        """Return the kustomization of a folder `place`; JSON is YAML."""
        if not (self.overlay / "kustomization.yaml").is_file():
            raise ConfigurationError(f"--overlay {str(self.overlay)!r}: no kustomization.yaml there")
        run = [{"op": "add", "path": f"/data/{key}", "value": value} for key, value in self.variables.items()]
        patches = [_patch("ConfigMap", "run", run)]
        for kind, name in (("StatefulSet", EDGE), ("StatefulSet", CLOUD), ("Deployment", "broker")):
            limit = {"op": "replace", "path": "/spec/template/spec/containers/0/resources/limits/memory"}
            patches.append(_patch(kind, name, [{**limit, "value": self.memory[name]}]))
        return {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": namespace,
            "resources": [os.path.relpath(self.overlay.resolve(), place.resolve()), "secrets.json"],
            "images": [{"name": name, **_image(image)} for name, image in self.images.items()],
            "replicas": [{"name": EDGE, "count": self.edges}],
            "patches": patches,
            **({"configMapGenerator": [self._scenarios(place)]} if self.files else {}),
            "generatorOptions": {"disableNameSuffixHash": True},
        }

    def _scenarios(self, place: Path) -> dict[str, Any]:
        for file in self.files:
            (place / file.name).write_bytes(file.read_bytes())  # kustomize reads no file outside
        return {"name": "scenarios", "files": [file.name for file in self.files]}

    def write(self, place: Path, namespace: str) -> None:
        """Write a kustomization, with Secrets that hold an identity for everybody, into a folder."""
        held = identities(place / "identities", self.edges)
        listed = {"apiVersion": "v1", "kind": "List", "items": [_secret(*one) for one in held.items()]}
        (place / "secrets.json").write_text(json.dumps(listed), encoding="utf-8")
        described = self._kustomization(namespace, place)
        (place / "kustomization.yaml").write_text(json.dumps(described, indent=1), encoding="utf-8")

    def apply(self, namespace: Namespace) -> None:
        """Make the namespace and all objects in it."""
        with tempfile.TemporaryDirectory() as folder:
            self.write(Path(folder), namespace.name)
            namespace("create", "namespace", namespace.name)
            namespace(
                "create", "--kustomize", folder
            )  # an applied object has its text as an annotation, too small


def _image(image: str) -> dict[str, str]:
    """Return an image's name, tag and digest as kustomize takes them."""
    tagged, _, digest = image.partition("@")
    folder, slash, last = tagged.rpartition("/")
    name, _, tag = last.partition(":")
    found = {"newName": f"{folder}{slash}{name}", "newTag": tag, "digest": digest}
    return {key: value for key, value in found.items() if value}


def _secret(name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    values = {key: base64.b64encode(value).decode() for key, value in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": values}


def _patch(kind: str, name: str, operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"target": {"kind": kind, "name": name}, "patch": json.dumps(operations)}


def identities(folder: Path, edges: int) -> dict[str, dict[str, bytes]]:
    """Return the Secrets of a testbed with an authority of its own, whose signing keys stay in `folder`."""
    authority = Authority.create(folder / "authority", ["broker"])
    write_broker(folder / "broker", authority)

    def issued(name: str, role: Role) -> dict[str, bytes]:
        authority.issue(name, role).write(folder / name)
        return {path.name: path.read_bytes() for path in (folder / name).iterdir()}

    of_edges: dict[str, bytes] = {}
    for name in members(EDGE, edges):
        of_edges |= {
            key if key == "ca.pem" else f"{name}.{key}": one for key, one in issued(name, Role.EDGE).items()
        }
    if sum(map(len, of_edges.values())) > _SECRET:
        raise ConfigurationError(
            f"edges = {edges}: their identities do not fit in one Secret; let them enrol"
        )
    broker = {path.name: path.read_bytes() for path in (folder / "broker").iterdir()}
    return {"broker": broker, CLOUD: issued(CLOUD, Role.CLOUD), "edges": of_edges}


def followed(
    namespace: Namespace, say: Callable[[str], None], until: float, patience: float
) -> tuple[int, dict[str, int]]:
    """Return the cloud's exit code, and those of the edges that ended within `patience` seconds of it."""
    last = ""
    while not (code := namespace.codes(CLOUD)):
        namespace.check()
        if (words := namespace.last_words("cloud-0", CLOUD)) != last:
            say(last := words)
        if time.monotonic() > until:
            raise KubernetesError(f"--timeout: the run took longer\n{namespace('get', 'pods')}")
        time.sleep(1.0)
    end = time.monotonic() + patience
    wanted = len(json.loads(namespace("get", "pods", f"--selector={_PART}={EDGE}", "--output=json"))["items"])
    while len(edges := namespace.codes(EDGE)) < wanted and time.monotonic() < end:
        time.sleep(1.0)
    return next(iter(code.values())), edges


@contextlib.contextmanager
def removed_afterwards(namespace: Namespace, keep: bool) -> Iterator[Namespace]:
    """Lend a namespace, and remove it with all that is in it, unless it is kept."""
    try:
        yield namespace
    finally:
        if not keep:
            with contextlib.suppress(KubernetesError):  # there may be none yet
                namespace("delete", "namespace", namespace.name, "--wait=false", "--ignore-not-found")
