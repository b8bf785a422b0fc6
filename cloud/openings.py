"""Which stage and ΔS each model version was sent to one edge with; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

_KEPT = 256  # an algorithm may change ΔS at every update; an edge is never so many models late


class _Opening(NamedTuple):
    version: int  # the first one sent so
    stage: int
    sensitivity: float
    beside: bool  # that version had been sent with the opening before, too


@dataclass(slots=True)
class Openings:
    """One entry for every change of (stage, ΔS), and no more than the newest of them."""

    _all: list[_Opening] = field(default_factory=list)
    _sent: int = 0  # the newest version that was sent

    def sent(self, version: int, stage: int, sensitivity: float) -> None:
        """Note what a model is sent with; versions never go back."""
        last = self._all[-1] if self._all else None
        if last is None or last.stage != stage or last.sensitivity != sensitivity:
            beside = last is not None and self._sent == version
            self._all.append(_Opening(version, stage, sensitivity, beside))
            del self._all[:-_KEPT]
        self._sent = version

    def plain(self) -> list[Any]:
        """Return all of it in lists and numbers."""
        return [self._sent, [list(opening) for opening in self._all]]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Self:
        sent, openings = plain
        return cls([_Opening(*opening) for opening in openings], sent)

    def newest(self, version: int, stage: int, sensitivity: float) -> bool:
        """Tell whether the model that was sent last is this one, so that sending it again is no news."""
        last = self._all[-1] if self._all else None
        return (
            last is not None
            and self._sent == version
            and last.stage == stage
            and last.sensitivity == sensitivity
        )

    def stage_of(self, version: int, sensitivity: float) -> int | None:
        """Return the stage of a version that was sent with exactly this ΔS; None: it never was."""
        for opening in reversed(self._all):
            if opening.version > version:
                continue
            if opening.sensitivity == sensitivity:
                return opening.stage
            if not (opening.beside and opening.version == version):
                return None
        return None
