"""The data sets: where each is, and whether its content is the published one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from common.datasets.catalogue import Description, describe, load_dataset
from common.datasets.named import cifar_10 as cifar
from common.datasets.named import fashion_mnist, mnist
from common.datasets.published import sha256_of
from common.errors import MapaError
from mapa.doctor.finding import BASIC, Finding, State

_EMBEDDED = ("mnist-5k", "digits", "breast-cancer", "diabetes")  # inside installed packages
_QUICKSTART = "mnist-5k"
_LARGE: Mapping[
    str, tuple[Callable[[Path], Mapping[str, Path]], Mapping[str, str], Callable[[Path], str]]
] = {
    "mnist": (mnist.find_mnist, mnist.SHA256, mnist.content_sha256),
    "fashion-mnist": (fashion_mnist.find_fashion, fashion_mnist.SHA256, mnist.content_sha256),
    "cifar-10": (cifar.find_cifar, cifar.SHA256, sha256_of),
}


def data_sets(data_dir: Path, *, checksums: bool = True) -> Iterator[Finding]:
    """Yield every data set that has a name."""
    for known in describe(data_dir):
        yield _finding(known, data_dir, checksums)


def _finding(known: Description, data_dir: Path, checksums: bool) -> Finding:
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
        if name not in _LARGE:
            load_dataset(name, data_dir)  # small: loading compares its checksum
            return ""
        find, digests, digest = _LARGE[name]
        differ = [str(path) for file, path in find(data_dir).items() if digest(path) != digests[file]]
    except (MapaError, OSError, EOFError, ValueError) as error:
        return " ".join(str(error).split())[:300]
    return f"the sha256 of {', '.join(differ)} differs" if differ else ""
