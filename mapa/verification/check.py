"""One row of what `mapa verify` prints, and the comparison of two JSON values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from mapa.verification.untrusted_files import NotCheckedError, UnreadableError


class Status(Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"  # what should have been: without it nothing is verified
    CLAIMED = "claimed"  # what no record can show: stated by the run, and taken for nothing else


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, of which part, and the result."""

    name: str
    status: Status
    part: str  # of the bundle or run that it is about
    detail: str

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}


def passed(name: str, part: str, detail: str) -> Check:
    return Check(name, Status.PASSED, part, detail)


def failed(name: str, part: str, detail: str) -> Check:
    return Check(name, Status.FAILED, part, detail)


def not_checked(name: str, part: str, detail: str) -> Check:
    return Check(name, Status.NOT_CHECKED, part, detail)


def claimed(name: str, part: str, detail: str) -> Check:
    return Check(name, Status.CLAIMED, part, detail)


def is_verified(checks: Iterable[Check]) -> bool:
    """Tell whether every check was made, and none failed."""
    return all(check.status in (Status.PASSED, Status.CLAIMED) for check in checks)


def guarded(name: str, part: str, make: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield the rows of a check, with one for a part that cannot be read and one for what cannot be checked here."""
    try:
        yield from make()
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
