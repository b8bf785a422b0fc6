"""One row of what `mapa verify` prints, errors that become rows, and the comparison of two JSON values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any


class UnreadableError(Exception):
    """A part of a run that cannot be read as what it is; says which."""

    def __init__(self, part: str, why: object) -> None:
        self.part = part
        super().__init__(f"{part}: {why}")


class NotCheckedError(Exception):
    """Something that cannot be checked here; says why, and what would be needed."""


class Status(Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"  # what should have been: without it nothing is verified
    CLAIMED = "claimed"  # what no record can show: stated by the run, and taken for nothing else


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, of which part, and the result."""

    name: str
    part: str  # of the bundle or run that it is about
    detail: str
    status: Status

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "status": self.status.value, "part": self.part, "detail": self.detail}


passed = partial(Check, status=Status.PASSED)
failed = partial(Check, status=Status.FAILED)
not_checked = partial(Check, status=Status.NOT_CHECKED)
claimed = partial(Check, status=Status.CLAIMED)


def judged(name: str, part: str, wrong: Iterable[str], agree: str) -> Iterator[Check]:
    """Yield a failed row for each detail that is wrong; a passed one if there is none."""
    yield from [failed(name, part, detail) for detail in wrong] or [passed(name, part, agree)]


def is_verified(checks: Iterable[Check]) -> bool:
    """Tell whether every check was made, and none failed."""
    return all(check.status in (Status.PASSED, Status.CLAIMED) for check in checks)


def guarded(name: str, part: str, check: Callable[..., Iterable[Check]], *given: Any) -> Iterator[Check]:
    """Yield the rows of a check, with one for a part that cannot be read and one for what cannot be checked here."""
    try:
        yield from check(*given)
    except UnreadableError as error:
        yield failed(name, error.part, str(error).removeprefix(f"{error.part}: "))
    except NotCheckedError as error:
        yield not_checked(name, part, str(error))
    except Exception as error:  # untrusted records: whatever is raised, they are at fault
        yield failed(name, part, f"cannot be checked: {type(error).__name__}: {error!s:.200}")


def unlike(stated: Any, expected: Any, place: str = "", tolerance: float = 0.0) -> str:
    """Say where two JSON values differ first; '' if they are alike, numbers to a relative tolerance."""
    if isinstance(stated, dict) and isinstance(expected, dict):
        if odd := sorted(stated.keys() ^ expected.keys()):
            return f"{place}: keys {odd!r:.100} are missing or extra"
        pairs = [(stated[key], expected[key], f"{place}.{key}") for key in expected]
    elif isinstance(stated, list) and isinstance(expected, list):
        if len(stated) != len(expected):
            return f"{place}: {len(stated)} entries, recomputed {len(expected)}"
        both = enumerate(zip(stated, expected, strict=True))
        pairs = [(value, other, f"{place}[{n}]") for n, (value, other) in both]
    else:
        numbers = type(stated) in (int, float) and type(expected) in (int, float)
        close = numbers and tolerance > 0 and math.isclose(stated, expected, rel_tol=tolerance)
        alike = (close or stated == expected) and isinstance(stated, bool) == isinstance(expected, bool)
        return "" if alike else f"{place} = {stated!r:.200}; recomputed {expected!r:.200}"
    return next((wrong for pair in pairs if (wrong := unlike(*pair, tolerance))), "")
