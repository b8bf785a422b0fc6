"""One row of what `mapa verify` prints."""

from __future__ import annotations

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
    """What was checked, of which part, and what came of it."""

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
    return all(one.status in (Status.PASSED, Status.CLAIMED) for one in checks)


def guarded(name: str, part: str, make: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield a check's rows; a part that cannot be read is a failure, what cannot be checked here is said."""
    try:
        yield from make()
    except UnreadableError as error:
        yield failed(name, error.part, str(error).removeprefix(f"{error.part}: "))
    except NotCheckedError as error:
        yield not_checked(name, part, str(error))
    except (
        Exception
    ) as error:  # records of somebody else at the border: whatever is raised, they are at fault
        yield failed(name, part, f"cannot be checked: {type(error).__name__}: {error!s:.200}")
