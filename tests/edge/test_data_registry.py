"""The same records in two state directories: known again by path, place on the disk and content."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import ConfigurationError
from edge.own_data import REGISTRY_VARIABLE, DataAccount, RecordFile, register, registry_path


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "book" / "local-data.sqlite3"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text("a,label\n1,0\n2,1\n")
    return path


def account(directory: str, name: str = "default") -> DataAccount:
    return DataAccount(f"id of {directory}", Path("/") / directory, name)


def claim(
    path: Path,
    of: DataAccount,
    book: Path,
    *,
    take: bool = False,
    forget: tuple[str, ...] = (),
    keep: bool = True,
) -> None:
    register(RecordFile.at(path), of, take=take, forget=forget, keep=keep, registry=book)


def refused(
    path: Path, of: DataAccount, book: Path, *, take: bool = False, forget: tuple[str, ...] = ()
) -> str:
    with pytest.raises(ConfigurationError) as caught:
        claim(path, of, book, take=take, forget=forget)
    return str(caught.value)


def test_another_state_directory_is_refused_with_the_name_of_the_first(book: Path, records: Path) -> None:
    claim(records, account("one"), book)
    said = refused(records, account("two"), book)
    assert "--state-dir /one --data-name default" in said
    assert "--take-data" in said


def test_the_same_account_may_come_back_and_a_moved_directory_is_the_same_account(
    book: Path, records: Path
) -> None:
    claim(records, account("one"), book)
    claim(records, account("one"), book)
    claim(records, DataAccount("id of one", Path("/elsewhere"), "default"), book)


def test_a_file_that_changed_is_known_by_its_path_and_a_copy_of_any_former_content_is_too(
    book: Path, records: Path
) -> None:
    claim(records, account("one"), book)
    former = records.with_name("former.csv")
    former.write_bytes(records.read_bytes())
    records.unlink()
    records.write_text("a,label\n1,0\n2,1\n3,1\n")
    assert "mine.csv" in refused(records, account("two"), book)
    claim(records, account("one"), book)
    assert "with the same content" in refused(former, account("two"), book)


def test_a_place_that_another_file_took_over_is_no_sign(book: Path, records: Path) -> None:
    claim(records, account("one"), book)
    first = RecordFile.at(records)
    other = records.with_name("other.csv")
    other.write_text("unrelated\n")
    saved = records.with_name("saved.csv")
    saved.write_text("a,label\n9,0\n")
    saved.replace(records)  # as editors save
    # as if the disk had used the first file's place for the other one
    register(
        RecordFile(other, first.device, first.inode, RecordFile.at(other).digest),
        account("two"),
        registry=book,
    )


def test_take_moves_the_account_once_and_the_former_owner_is_refused(book: Path, records: Path) -> None:
    claim(records, account("one"), book)
    claim(records, account("two"), book, take=True)
    claim(records, account("two"), book)
    assert "/two" in refused(records, account("one"), book)


def test_a_question_keeps_nothing(book: Path, records: Path) -> None:
    claim(records, account("one"), book, keep=False)
    claim(records, account("two"), book)


def changed(path: Path) -> Path:
    path.write_text(path.read_text() + "9,0\n")
    return path


def linked(path: Path, *, symbolic: bool = False) -> Path:
    (os.symlink if symbolic else os.link)(path, path.with_name("link.csv"))
    return path.with_name("link.csv")


def copied(path: Path) -> Path:
    return Path(shutil.copy(path, path.with_name("copy.csv")))


# another way to the records of mine.csv, which have an account, and how they are known
WAYS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "same content": (lambda path: path, "known as"),
    "same path": (changed, "known as"),
    "symbolic link": (lambda path: linked(changed(path), symbolic=True), "known as"),
    "hard link": (lambda path: linked(changed(path)), "known by another name as"),
    "renamed": (
        lambda path: changed(path.rename(path.with_name("renamed.csv"))),
        "known by another name as",
    ),
    "copy": (copied, "known with the same content as"),
    "folder above": (lambda path: changed(path).parent, "known as"),
    "copy of the folder": (
        lambda path: Path(shutil.copytree(path.parent, path.parent.with_name("copy"))) / path.name,
        "known with the same content as",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_file_is_one_account_whatever_its_data_name(book: Path, tmp_path: Path, way: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    records = folder / "mine.csv"
    records.write_text("a,label\n1,0\n2,1\n")
    claim(records, account("one", "2025"), book)
    find, known = WAYS[way]
    other = find(records)
    said = refused(other, account("one", "2026"), book)
    for words in (known, "use --data-name 2025", "--forget-account 2025"):
        assert words in said
    refused(other, account("one", "2026"), book, take=True)  # moves an account from another state directory
    refused(other, account("one", "2026"), book, forget=("2024",))
    assert "--state-dir /one --data-name 2025" in refused(other, account("two", "2025"), book)
    claim(other, account("one", "2025"), book, keep=False)
    claim(other, account("one", "2026"), book, forget=("2025",))
    claim(other, account("one", "2026"), book)
    assert "use --data-name 2026" in refused(other, account("one", "2025"), book)


def test_a_former_content_stays_known_when_its_account_is_given_up(book: Path, records: Path) -> None:
    former = copied(records)
    claim(records, account("one", "a"), book)
    claim(changed(records), account("one", "b"), book, forget=("a",))
    assert "use --data-name b" in refused(former, account("one", "c"), book)
    claim(records, account("two"), book, take=True)
    assert "--state-dir /two" in refused(former, account("one", "c"), book)


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "folder").mkdir()
    for name, why in (("empty.csv", "is empty"), ("folder", "is empty"), ("none.csv", "cannot be read")):
        with pytest.raises(ConfigurationError, match=why):
            RecordFile.at(tmp_path / name)


def test_a_book_that_cannot_be_used_is_refused_and_names_the_variable(records: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=REGISTRY_VARIABLE):
        claim(records, account("one"), tmp_path / "file" / "book.sqlite3")
    newer = tmp_path / "newer.sqlite3"
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigurationError, match="version 99"):
        claim(records, account("one"), newer)


def test_where_the_book_is() -> None:
    assert registry_path({REGISTRY_VARIABLE: "/x/y.sqlite3"}) == Path("/x/y.sqlite3")
    assert registry_path({"XDG_STATE_HOME": "/s"}) == Path("/s/mapa/local-data.sqlite3")
    assert (
        registry_path({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/mapa/local-data.sqlite3"
    )
