"""The data sets: where each is, and whether its content is the published one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from common.datasets.catalogue import describe, named_dataset
from common.datasets.published import DatasetDescription
from common.errors import MapaError
from mapa.doctor.finding import BASIC, Finding, State

_EMBEDDED = ("mnist-5k", "digits", "breast-cancer", "diabetes")  # inside installed packages
_QUICKSTART = "mnist-5k"


def data_sets(data_dir: Path, *, checksums: bool = True) -> Iterator[Finding]:
    """Yield every data set that has a name."""
    for known in describe(data_dir):
        yield _finding(known, data_dir, checksums)


def _finding(known: DatasetDescription, data_dir: Path, checksums: bool) -> Finding:
    get = f"mapa data get {known.name}"
    if known.name in ("digits", "breast-cancer", "diabetes"):
        get = "pip install 'mapa-testbed[tables]'"
    elif known.name == _QUICKSTART:
        get = "pip install 'mapa-testbed[embedded]'"
    serves = frozenset({known.name, *((BASIC,) if known.name == _QUICKSTART else ())})
    wrong = "" if not known.present or not checksums else _wrong(known.name, data_dir)
    if not known.present:
        state, found, mend = State.MISSING, "not found", get
    elif wrong:
        state, found, mend = State.BROKEN, wrong, f"remove these files, then: {get}"
    else:
        kind = "embedded in a package, " if known.name in _EMBEDDED else ""
        said = "checksum right" if checksums else "checksum not looked at"
        state, found, mend = State.OK, f"{kind}{known.files[0].parent}, {said}", ""
    return Finding(
        name=f"data {known.name}",
        state=state,
        found=found,
        needed_for=f"scenarios with data.set = {known.name!r}",
        serves=serves,
        mend=mend,
    )


def _wrong(name: str, data_dir: Path) -> str:
    """Say what is wrong with the content; "": it is the published one."""
    try:
        named_dataset(name).check(data_dir)
    except (MapaError, OSError, EOFError, ValueError) as error:
        return " ".join(str(error).split())[:300]
    return ""
