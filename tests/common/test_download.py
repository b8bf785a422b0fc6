"""One file from mirrors that fail as mirrors do."""

from __future__ import annotations

import gzip
import hashlib
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.datasets.download import DownloadError, fetch
from common.datasets.published import RemoteFile, read_content
from common.errors import DataUnavailableError
from tests.datasets_support import FileServer

NAME = "train-images-idx3-ubyte.gz"
CONTENT = np.random.default_rng(0).bytes(300_000)
BODY = gzip.compress(CONTENT, mtime=0)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def remote(*places: str, largest: int = 2**20) -> RemoteFile:
    urls = tuple(f"{place}{NAME}" for place in places)
    return RemoteFile(
        NAME, urls, largest, lambda path: _sha256(read_content(path, largest)), _sha256(CONTENT)
    )


def assert_whole(path: Path, folder: Path) -> None:
    assert path == folder / NAME
    assert path.read_bytes() == BODY
    assert list(folder.iterdir()) == [path], "no part file is left"


def test_a_file_arrives_whole_with_its_progress(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    with FileServer({NAME: BODY}) as server:
        path = fetch(remote(server.url), tmp_path / "new", progress=lambda *step: seen.append(step))
    assert_whole(path, tmp_path / "new")
    assert {name for name, _, _ in seen} == {NAME}
    assert {total for _, _, total in seen} == {len(BODY)}
    done = [bytes_done for _, bytes_done, _ in seen]
    assert done == sorted(done)
    assert done[-1] == len(BODY)


def test_a_cut_connection_is_resumed_where_it_ended(tmp_path: Path) -> None:
    with FileServer({NAME: BODY}, cut_after=100_000) as server:
        path = fetch(remote(server.url), tmp_path)
    assert_whole(path, tmp_path)
    assert server.ranges == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_a_second_mirror_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    with (
        FileServer({NAME: BODY}, cut_after=50_000, ignore_range=True) as cut,
        FileServer({NAME: BODY}) as whole,
    ):
        path = fetch(remote(cut.url, whole.url), tmp_path)
    assert_whole(path, tmp_path)
    assert len(cut.requests) == 2, "a mirror that brings nothing new is left"
    assert whole.ranges == ["bytes=50000-"]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Please log in</html>",
        gzip.compress(CONTENT[:-1]),
        BODY[:-20],
        gzip.compress(bytes(49 * 2**20)),
    ],
    ids=["page", "other content", "cut gzip", "decompression bomb"],
)
def test_wrong_content_is_refused_and_removed(tmp_path: Path, body: bytes) -> None:
    with FileServer({NAME: body}) as server, pytest.raises(DownloadError) as caught:
        fetch(remote(server.url), tmp_path)
    assert list(tmp_path.iterdir()) == []
    ((url, reason),) = caught.value.failures
    assert url == f"{server.url}{NAME}"
    assert reason.startswith("sent ")
    assert len(server.requests) == 1


@pytest.mark.parametrize("files", [{}, {NAME: BODY[::-1]}], ids=["nothing", "wrong content"])
def test_a_mirror_without_the_file_does_not_spoil_the_next(tmp_path: Path, files: dict[str, bytes]) -> None:
    with FileServer(files) as wrong, FileServer({NAME: BODY}) as right:
        assert_whole(fetch(remote(wrong.url, right.url), tmp_path), tmp_path)
    assert len(wrong.requests) == 1
    assert right.ranges == [None]


@pytest.mark.parametrize(
    ("habit", "left", "ranges"),
    [
        ({"ignore_range": True}, 5000, ["bytes=5000-"]),
        ({"longest_range": 4000}, -5000, [f"bytes={len(BODY) - 5000}-", f"bytes={len(BODY) - 1000}-"]),
        ({"shifted_range": 1}, 5000, ["bytes=5000-", None]),
    ],
    ids=["sends all again", "sends ranges in pieces", "sends another range"],
)
def test_a_server_with_ranges_of_its_own_is_asked_until_the_file_is_whole(
    tmp_path: Path, habit: dict[str, Any], left: int, ranges: list[str | None]
) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(BODY[:left])
    with FileServer({NAME: BODY}, **habit) as server:
        assert_whole(fetch(remote(server.url), tmp_path), tmp_path)
    assert server.ranges == ranges


@pytest.mark.parametrize(
    ("left", "ranges"),
    [
        (BODY + b"more", [f"bytes={len(BODY) + 4}-", None]),
        (BODY, [f"bytes={len(BODY)}-"]),
        (b"x" * 5000, ["bytes=5000-", None]),
        (BODY[:1234], ["bytes=1234-"]),
    ],
    ids=["longer", "whole", "stale", "of an earlier attempt"],
)
def test_a_part_is_resumed_or_begun_again_where_it_does_not_fit(
    tmp_path: Path, left: bytes, ranges: list[str | None]
) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(left)
    with FileServer({NAME: BODY}) as server:
        path = fetch(remote(server.url), tmp_path)
    assert_whole(path, tmp_path)
    assert server.ranges == ranges


def test_a_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    with (
        FileServer({NAME: BODY}) as server,
        pytest.raises(DownloadError, match="more than 100,000 bytes"),
    ):
        fetch(remote(server.url, largest=100_000), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_here_and_right_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(BODY)
    with FileServer({NAME: BODY}) as server:
        assert_whole(fetch(remote(server.url), tmp_path), tmp_path)
        assert server.requests == []
        (tmp_path / NAME).write_bytes(BODY[:-1])
        assert_whole(fetch(remote(server.url), tmp_path), tmp_path)
        assert len(server.requests) == 1


def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # its backlog connects, nobody answers
        place = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(DownloadError, match="timed out"):
            fetch(remote(place), tmp_path, timeout=0.1)


def test_a_folder_that_cannot_be_written_is_not_blamed_on_the_mirror(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with FileServer({NAME: BODY}) as server:
        with pytest.raises(DataUnavailableError, match="MAPA_DATA_DIR") as caught:
            fetch(remote(server.url), tmp_path / "file")
        assert not isinstance(caught.value, DownloadError)
        (tmp_path / f"{NAME}.part").mkdir()
        with pytest.raises(DataUnavailableError, match="cannot write"):
            fetch(remote(server.url), tmp_path)


def test_two_at_once_download_one_after_the_other(tmp_path: Path) -> None:
    with FileServer({NAME: BODY}, cut_after=20_000) as server:
        paths: list[Path] = []
        both = [
            threading.Thread(target=lambda: paths.append(fetch(remote(server.url), tmp_path))) for _ in "12"
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    assert paths == [tmp_path / NAME] * 2
    assert_whole(paths[0], tmp_path)
    assert server.ranges.count(None) == 1
