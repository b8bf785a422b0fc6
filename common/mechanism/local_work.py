"""The local work port: how an edge makes a message out of releases, and how many it is charged for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from common.mechanism.part import Part, Port
from common.quantities import NoisyGradient, Vector

# Makes the next release at a model x. The work sees nothing else of the records, so what it does is post-processing.
Release = Callable[[Vector], NoisyGradient]


class LocalWork(Part):
    """What every kind of local work has. `releases` and `message` have no default."""

    __slots__ = ()

    def releases(self) -> int:
        """Return E: how many releases one message is charged for; a message that asks for more is never sent."""
        raise NotImplementedError

    def message(self, x: Vector, release: Release, bound: float, regularization: float) -> NoisyGradient:
        """Return what is sent for the model x: a mean of releases, each of noise for the bound C, with λx in it."""
        raise NotImplementedError

    @property
    def local_rate(self) -> float:
        """ρ_local, where a step moves x by at most ρ_local/C times a release; 0: x stays as it was received."""
        return 0.0

    def audited(self) -> Self:
        """Return it as an audit plays it: x must move so little that a canary stays as loud as it was."""
        return self


LOCAL_WORK = Port(LocalWork, "local.work", "common.mechanism.work", ("releases", "message"))


def named_work(options: Mapping[str, Any]) -> str:
    """Return the work that is meant where options of [local] are given and no work is named."""
    return "single-step" if options.get("steps", 1) == 1 else "local-steps"
