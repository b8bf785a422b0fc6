"""Where samples come from: a named data set, or files under the data directory with what is declared of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from common.datasets.dataset import Dataset, Samples
from common.datasets.formats import NAMED
from common.datasets.published import sha256_of
from common.datasets.readers import is_saved, read_csv, read_images, read_npz, read_parquet, read_saved
from common.datasets.schema import DataSchema, fault
from common.errors import ConfigurationError, require

FILE, LOCAL = "file", "local"  # data.set: files that all hold; data that each edge brings
DECLARED = (FILE, LOCAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files that all parties hold, by their paths under the data directory."""

    train: str
    test: str | None
    schema: DataSchema


Source = str | FileSource


def check_path(key: str, text: str) -> str:
    """Return a path that stays under the data directory: a peer may have named it."""
    path = PurePosixPath(text)
    parts = path.parts
    inside = not path.is_absolute() and bool(parts) and ".." not in parts
    plain = "\\" not in text and ":" not in text and text.isprintable()
    require(inside and plain, key, repr(text), "a path under the data directory, without '..'")
    known = NAMED.get(parts[0].lower().removesuffix(".npz"))
    if known is not None and known.in_data_dir:
        raise ConfigurationError(f"{key} = {text!r}: belongs to a known data set; use its name in data.set")
    return path.as_posix()


def refuse_one_file(train: str, test: str, data_dir: Path | None = None) -> None:
    """Refuse a test file that is the training file, by its path or, where they are at hand, by its inode.

    Metrics of a run are published, and would be computed from the very records that its noise protects.
    """
    same = PurePosixPath(train) == PurePosixPath(test)
    if data_dir is not None and not same:
        try:
            same = (data_dir / train).samefile(data_dir / test)
        except OSError:  # reading says what is wrong with them
            same = False
    if same:
        raise ConfigurationError(
            f"data.test_path = {test!r}: is the same file as data.train_path = {train!r}, so that metrics would be"
            " released from private records without noise; name another file, leave data.test_path out, or hold"
            " records out by data.holdout"
        )


def load_files(source: FileSource, data_dir: Path) -> Dataset:
    """Return the data set in these files.

    The checksum is that of the training file's bytes, whatever is declared of them: another declaration must
    not open another account for the same records.
    """
    path, schema = _find("data.train_path", source.train, data_dir), source.schema
    test_path = None if source.test is None else _find("data.test_path", source.test, data_dir)
    if source.test is not None:
        refuse_one_file(source.train, source.test, data_dir)
    train = read_samples(path, schema)
    test = None if test_path is None else read_samples(test_path, schema)
    shape, classes, checksum = schema.shape, schema.classes, bytes_checksum(path)
    return Dataset(FILE, shape, classes, train, test, checksum, schema.target_range)


def _find(key: str, text: str, data_dir: Path) -> Path:
    path = data_dir / check_path(key, text)
    if not path.exists():
        raise fault(
            path,
            f"does not exist; {key} = {text!r} is relative to the data directory {data_dir}: put it there, or name"
            " another one with --data-dir or MAPA_DATA_DIR",
        )
    return path


def bytes_checksum(path: Path) -> str:
    """Return the sha256 of a file's bytes, or of the names and bytes of all files in a folder."""
    try:
        if not path.is_dir():
            return sha256_of(path)
        digest = hashlib.sha256()
        inside = {one.relative_to(path): one for one in path.rglob("*") if one.is_file()}
        for name, file in sorted(inside.items()):
            if not any(part.startswith(".") for part in name.parts):  # hidden files are not read either
                digest.update(f"{name.as_posix()}\n{sha256_of(file)}\n".encode())
        return digest.hexdigest()
    except OSError as error:
        raise fault(path, f"cannot be read ({error.strerror})") from error


_READERS: dict[tuple[str, str], Callable[[Path, DataSchema], Samples]] = {
    (".npz", "array"): read_npz,
    (".csv", "table"): read_csv,
    (".parquet", "table"): read_parquet,
    ("folder", "images"): read_images,
}


def read_samples(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a .npz, .csv or .parquet file, of a folder of images by class, or of one of `datasets`.

    Raise DataFaultError, which names file, row and column: print it here and never send it.
    """
    if not path.exists():
        raise fault(path, "does not exist")
    if not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise fault(path, "is neither a file nor a folder")
    if path.is_dir() and is_saved(path):
        return read_saved(path, schema)
    suffix = "folder" if path.is_dir() else path.suffix.lower()
    if (suffix, schema.kind) not in _READERS:
        allowed = ", ".join(f"{kind}: {end}" for end, kind in _READERS)
        raise fault(path, f'cannot be read with kind = "{schema.kind}"; allowed are {allowed}')
    return _READERS[suffix, schema.kind](path, schema)
