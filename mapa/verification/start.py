"""Where a run began, from its records alone: scenario, x₁ and what the cloud waited for. Without the data set.

Records are somebody's word: code that they name is imported only where the operator allows it by its dotted path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from cloud.assembly import begin, first_model, terms_for
from cloud.server import CloudServer
from common.datasets.catalogue import describe
from common.errors import ConfigurationError
from common.models.model import Model
from common.own_code import code_named_by, is_dotted
from common.quantities import Vector, is_finite
from common.randomness import CounterStreams, streams_for
from common.records.checkpoint import unpack
from common.records.regular import MOST_JSON, MOST_MODEL
from common.scenario.parts import model_for
from common.scenario.scenario import Scenario, parse_scenario
from mapa.verification.run_files import (
    MANIFEST,
    MODEL,
    START,
    START_OF_LOG,
    RunFiles,
    UnreadableError,
)
from mapa.verification.strict_json import strict_object

_CODE = ("algorithm.name", "privacy.noise")  # what a scenario imports when it is parsed


class NotCheckedError(Exception):
    """Something that cannot be checked here; says why, and what would be needed."""


@dataclass(frozen=True, slots=True)
class Start:
    """A run at t = 1."""

    scenario: Scenario
    incarnation: int
    x: Vector  # x₁
    edges_at_least: int
    model: Model | None  # None: it cannot be made here, and need not be
    derived: bool  # x₁ follows from the scenario; else it is as recorded

    def server(self) -> CloudServer:
        """Return the cloud as it was then."""
        sized = self.model or cast(Model, _Sized(len(self.x)))
        return CloudServer(
            terms=terms_for(self.scenario, sized, edges_at_least=self.edges_at_least),
            model=self.x,
            begin=partial(begin, self.scenario),
            incarnation=self.incarnation,
        )


@dataclass(frozen=True, slots=True)
class _Sized:
    """As much of a model as the cloud's terms ask for, unless the noise covers its first layer alone."""

    dimension: int


def allow(name: object, key: str, allowed: Collection[str]) -> None:
    """Raise NotCheckedError where records name code that nobody here has allowed."""
    if isinstance(name, str) and is_dotted(name) and name not in allowed:
        raise NotCheckedError(f"{key} = {name!r} is code of the run's own; allow it with --allow {name}")


def scenario_of(manifest: Mapping[str, Any], allowed: Collection[str]) -> Scenario:
    """Return a run's scenario; UnreadableError where its manifest has none that this version can read."""
    values = manifest.get("scenario")
    if not isinstance(values, dict):
        raise UnreadableError(MANIFEST, "no scenario")
    for key, path in code_named_by(values):
        if key in _CODE:
            allow(path, key, allowed)
    try:
        return parse_scenario(values)
    except ConfigurationError as error:
        raise UnreadableError(MANIFEST, f"scenario: {error}") from error


def model_of(scenario: Scenario, manifest: Mapping[str, Any], allowed: Collection[str]) -> Model:
    """Return the run's model without its data; NotCheckedError where that cannot be made here."""
    allow(scenario.model.name, "model.name", allowed)
    shape, classes = _form(scenario, manifest)
    try:
        return model_for(scenario, shape, classes)
    except ConfigurationError as error:
        raise NotCheckedError(str(error)) from error


def _form(scenario: Scenario, manifest: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    form = manifest.get("samples")
    if isinstance(form, dict):
        shape, classes = form.get("shape"), form.get("classes")
        shaped = isinstance(shape, list) and 0 < len(shape) <= 8 and all(_count(one) for one in shape)
        if shaped and (classes == 0 or _count(classes)):
            return tuple(cast(list[int], shape)), cast(int, classes)
        raise UnreadableError(MANIFEST, f"samples = {form!r:.200}: must have a shape and classes")
    for known in describe(Path()):
        if known.name == scenario.data.set:
            return known.shape, known.classes
    raise NotCheckedError(f"the manifest does not say the shape of the samples of {scenario.data.set!r}")


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 31


def start_of(files: RunFiles, scenario: Scenario, allowed: Collection[str]) -> Start:
    """Return where the run began; NotCheckedError where the records do not say it and this machine cannot tell."""
    head, manifest = files.head(), files.json(MANIFEST)
    held = sum(len(files.contents[name]) for name in (*START[1:], MODEL, *files.segments) if name in files)
    if 4 * head.dimension > min(held, MOST_MODEL):  # before anything of that size is made
        raise UnreadableError(START_OF_LOG, f"N = {head.dimension}: more numbers than the run's files hold")
    recorded: dict[str, Any] | None = None
    model, reason, lost = None, "", ""
    try:
        recorded = first_state(files)
    except UnreadableError as error:
        lost = str(error)
    try:
        model = model_of(scenario, manifest, allowed)
    except NotCheckedError as error:
        reason = str(error)
    if scenario.privacy.scope == "first-conv" and scenario.private and model is None:
        raise NotCheckedError(reason)
    if model is not None and model.dimension != head.dimension:
        raise UnreadableError(
            START_OF_LOG, f"N = {head.dimension}; the scenario's model has {model.dimension}"
        )
    derived = None if model is None else _derived(model, scenario.seed)
    if recorded is None and derived is None:
        raise NotCheckedError(
            "; ".join(filter(None, (reason, f"x₁ does not follow from the scenario, and {lost}")))
        )
    edges_at_least = scenario.testbed.edges_at_least
    x = derived
    if recorded is not None:
        x, edges_at_least = _checked(recorded, head.incarnation, head.dimension)
        if derived is not None and derived.tobytes() != x.tobytes():
            raise UnreadableError(START[1], "x₁ is not the one that follows from the scenario")
    assert x is not None
    return Start(scenario, head.incarnation, x, edges_at_least, model, derived is not None)


def _derived(model: Model, seed: int | None) -> Vector | None:
    """Return x₁ where the scenario decides it: by a seed, or since the model draws nothing for it."""
    if seed is not None:
        return first_model(model, streams_for(seed))
    one, other = (first_model(model, CounterStreams.seeded(number)) for number in (1, 2))
    return one if one.tobytes() == other.tobytes() else None


def first_state(files: RunFiles) -> dict[str, Any]:
    """Return the state of the first checkpoint; UnreadableError names the file that is missing or damaged."""
    for name, most in zip(START, (MOST_JSON, MOST_MODEL), strict=True):
        if name not in files:
            raise UnreadableError(name, "missing")
        if (size := len(files.contents[name])) > most:
            raise UnreadableError(name, f"{size} bytes, at most {most}")
    content, packed = (bytes(files.contents[name]) for name in START)
    try:
        strict_object(content, MOST_JSON)
        return unpack(content, packed)
    except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError) as error:
        of_arrays = isinstance(error, KeyError) or str(error).startswith("arrays: ")
        raise UnreadableError(START[of_arrays], error) from error


def _checked(state: Mapping[str, Any], incarnation: int, dimension: int) -> tuple[Vector, int]:
    server = state.get("server")
    if not isinstance(server, dict):
        raise UnreadableError(START[0], "no server")
    x, edges_at_least = server.get("model"), server.get("edges_at_least")
    if (server.get("t"), server.get("edges"), server.get("halted")) != (1, [], None):
        raise UnreadableError(START[0], "not the state of a cloud before its first event")
    if server.get("incarnation") != incarnation:
        raise UnreadableError(START[0], "of another run than the log")
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.shape != (dimension,) or not is_finite(x):
        raise UnreadableError(START[1], f"x₁ must be {dimension} finite numbers in float32")
    if not _count(edges_at_least):
        raise UnreadableError(START[0], f"edges_at_least = {edges_at_least!r:.40}")
    return x, cast(int, edges_at_least)
