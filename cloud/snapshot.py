"""Snapshot of the cloud's state as plain values and arrays, and its restoration; pure.

What a fresh server has from its scenario (terms, constants, x₁'s shape) is left out. A plain value is None, a bool, a
number, a text, a list, a dict with text keys or an array; any other is an object with the key "$".
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from cloud.admission import EdgeAccount, SentModels
from cloud.algorithm import Algorithm, WithAverage, WithWeights
from cloud.server import CloudServer
from cloud.stages import Stage
from cloud.sums import Held, InSums
from common.errors import ConfigurationError
from common.messages import Halt
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from common.problem import Problem, SensitivityRule

_KNOWN: tuple[type, ...] = (Problem, Stage, SensitivityRule, WithAverage, WithWeights, InSums, Held)
_PLAIN = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """Any value that an algorithm may have in a field ↔ plain values; classes are known, never looked up by a path.

    Known are the port's own, and the dataclasses and enumerations in the file of the algorithm.
    """

    made: type[Algorithm]

    def plain(self, value: Any, key: str = "state") -> Any:
        """Return a value in plain values; ConfigurationError where its type is none that a checkpoint holds."""
        if value is None or type(value) in _PLAIN or isinstance(value, np.ndarray):
            return value
        if isinstance(value, np.generic):
            return {"$": "scalar", "value": np.asarray(value)}
        if isinstance(value, NoiseLaw):
            return plain_law(value)
        if isinstance(value, tuple) and type(value) is tuple:
            return {"$": "tuple", "items": [self.plain(one, key) for one in value]}
        if type(value) is list:
            return [self.plain(one, key) for one in value]
        if type(value) is dict:
            pairs = [[self.plain(one, key), self.plain(other, key)] for one, other in value.items()]
            return {"$": "dict", "items": pairs}
        if isinstance(value, Enum) and type(value) in self._classes.values():
            return {"$": "enum", "type": type(value).__name__, "name": value.name}
        if dataclasses.is_dataclass(value) and type(value) in self._classes.values():
            fields = {
                one.name: self.plain(getattr(value, one.name), f"{key}.{one.name}")
                for one in dataclasses.fields(value)
            }
            return {"$": "made", "type": type(value).__name__, "fields": fields}
        raise ConfigurationError(
            f"algorithm {self.made.__name__}: {key} is a {type(value).__name__}, which no checkpoint holds; allowed"
            " are numbers, texts, arrays, tuples, lists, dicts, and dataclasses and enumerations of its own file"
        )

    def value(self, plain: Any) -> Any:
        """Return the value that `plain` was made from."""
        if isinstance(plain, list):
            return [self.value(one) for one in plain]
        if not isinstance(plain, dict):
            return plain
        match plain["$"]:
            case "scalar":
                return plain["value"][()]
            case "law":
                return law_from(plain)
            case "tuple":
                return tuple(self.value(one) for one in plain["items"])
            case "dict":
                return {self.value(one): self.value(other) for one, other in plain["items"]}
            case "enum":
                return self._classes[plain["type"]][plain["name"]]  # type: ignore[index]  # an Enum
            case "made":
                cls = self._classes[plain["type"]]
                made: Any = object.__new__(cls)  # exactly the fields: nothing is computed again
                for name, field in plain["fields"].items():
                    object.__setattr__(made, name, self.value(field))
                return made
            case other:
                raise ConfigurationError(f"checkpoint: a value of kind {other!r}")

    @property
    def _classes(self) -> dict[str, type]:
        own = vars(sys.modules[self.made.__module__]).values()
        fit = [one for one in own if isinstance(one, type) and one.__module__ == self.made.__module__]
        return {one.__name__: one for one in (*fit, *_KNOWN, self.made)}


def plain_law(law: NoiseLaw | None) -> dict[str, Any] | None:
    return None if law is None else {"$": "law", "name": law.name, "parameters": dict(law.parameters)}


def law_from(plain: Mapping[str, Any] | None) -> NoiseLaw | None:
    return None if plain is None else noise_law(plain["name"], plain["parameters"])


_ACCOUNT = tuple(
    field.name for field in dataclasses.fields(EdgeAccount) if field.name not in ("reach", "sent_models")
)
_COUNTS = ("incarnation", "t", "tau_seen", "stage", "moment", "longest")  # of a server, as they are


def server_state(server: CloudServer, made: type[Algorithm]) -> dict[str, Any]:
    """Return all of a server that its scenario does not say; `made` is the class of its algorithm."""
    halted = server.halted
    return {
        **{name: getattr(server, name) for name in _COUNTS},
        "edges_at_least": server.terms.edges_at_least,
        "halted": None if halted is None else [halted.reason, halted.updates],
        "model": server.model,
        "schedule": ValueCodec(made).plain(server.schedule),
        "edges": [_account(account) for account in server.edges.values()],
    }


def restore_server(server: CloudServer, state: Mapping[str, Any], made: type[Algorithm]) -> None:
    """Bring a server that was made for the same scenario to a state."""
    model, halted = state["model"], state["halted"]
    if model.shape != server.model.shape or model.dtype != server.model.dtype:
        raise ConfigurationError(
            f"checkpoint: x has shape {model.shape}, the scenario's {server.model.shape}"
        )
    for name in _COUNTS:
        setattr(server, name, state[name])
    server.terms = replace(server.terms, edges_at_least=state["edges_at_least"])
    server.halted = None if halted is None else Halt(halted[0], halted[1], server.incarnation)
    server.model = model
    server.schedule = ValueCodec(made).value(state["schedule"])
    server.take_accounts([_account_from(fields, server) for fields in state["edges"]])


def _account(account: EdgeAccount) -> dict[str, Any]:
    return {
        **{name: getattr(account, name) for name in _ACCOUNT},
        "former": [list(pair) for pair in account.former.items()],
        "law": plain_law(account.law),
        "openings": account.sent_models.plain(),
    }


def _account_from(state: Mapping[str, Any], server: CloudServer) -> EdgeAccount:
    fields, law = dict(state), law_from(state["law"])
    fields |= {"former": dict(state["former"]), "law": law, "reach": server.terms.reach(law)}
    return EdgeAccount(sent_models=SentModels.from_plain(fields.pop("openings")), **fields)
