"""A Docker engine, Compose and the images: asked by the `docker` program, which only tells."""

from __future__ import annotations

import getpass
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

from mapa.doctor.asking import Answer, ask
from mapa.doctor.finding import Finding, State, by_platform

PURPOSE = "containers"
IMAGES = ("mapa-cloud", "mapa-edge-cnn")
_SERVES = frozenset({PURPOSE})
_NEEDED_FOR = "mapa containers, docker compose"


def engine() -> Iterator[Finding]:
    """Yield what containers need; where there is no engine, its images are not asked for."""
    binary = shutil.which("docker")
    if binary is None:
        yield _of_engine(
            state=State.MISSING,
            found="no `docker` on PATH",
            mend=by_platform(
                debian="make engine  (installs and starts one; needs root)",
                mac="brew install colima docker docker-compose && colima start",
            ),
        )
        return
    answer = ask([binary, "version", "--format", "{{json .}}"])
    yield _engine(binary, answer)
    yield _compose(ask([binary, "compose", "version", "--short"]))
    if answer.fine:
        for image in IMAGES:
            yield _image(image, ask([binary, "image", "inspect", "--format", "{{.Id}} {{.Created}}", image]))


def _engine(binary: str, answer: Answer) -> Finding:
    where = os.environ.get("DOCKER_HOST") or "the usual socket"
    if answer.fine:
        server = _object(answer.out).get("Server")
        number = server.get("Version") if isinstance(server, dict) else None
        options = ask([binary, "info", "--format", "{{json .SecurityOptions}}"]).out
        kind = "rootless" if "rootless" in options else "rootful"
        found = f"{number or 'version unknown'}, {kind}, answers {_user()} at {where}"
        return _of_engine(state=State.OK, found=found)
    said = answer.err.splitlines()[-1][:200] if answer.err else "no answer"
    if "permission denied" in answer.err.lower():
        mend = "sudo usermod -aG docker $USER, then log in again (its members are as good as root)"
    else:
        mend = by_platform(
            debian="sudo systemctl start docker  (without systemd: make engine)",
            mac="colima start  (or: open -a Docker)",
        )
    return _of_engine(state=State.BROKEN, found=f"does not answer {_user()} at {where}: {said}", mend=mend)


def _of_engine(*, state: State, found: str, mend: str = "") -> Finding:
    return Finding(
        name="Docker engine", state=state, found=found, needed_for=_NEEDED_FOR, serves=_SERVES, mend=mend
    )


def _compose(answer: Answer) -> Finding:
    return Finding(
        name="Docker Compose",
        state=State.OK if answer.fine else State.MISSING,
        found=answer.out.splitlines()[0][:80] if answer.fine and answer.out else "no `docker compose`",
        needed_for="docker compose up, make up",
        serves=_SERVES,
        mend=""
        if answer.fine
        else by_platform(
            debian="make engine  (or: apt install docker-compose-v2)", mac="brew install docker-compose"
        ),
    )


def _image(image: str, answer: Answer) -> Finding:
    return Finding(
        name=f"image {image}",
        state=State.OK if answer.fine else State.MISSING,
        found=" of ".join(word[:19] for word in answer.out.split()[:2]) if answer.fine else "not built",
        needed_for=_NEEDED_FOR,
        serves=_SERVES,
        mend="" if answer.fine else "make images  (without a registry: make images-offline)",
    )


def _user() -> str:
    try:
        return f"user {getpass.getuser()}"
    except (OSError, KeyError):  # a user id without a name
        return f"user {os.geteuid()}"


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
