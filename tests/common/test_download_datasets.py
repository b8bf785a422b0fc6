"""Whole data sets from mirrors, one's own first."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from common.datasets.catalogue import data_mirror, get_dataset, load_dataset, named_dataset
from common.datasets.dataset import content_checksum
from common.datasets.download import fetch_dataset
from common.datasets.formats import read_h5
from common.datasets.published import Download, RemoteFile
from common.errors import ConfigurationError, DataUnavailableError
from tests.datasets_support import (
    LIBSVM,
    TRAIN_LABELS,
    ZIPCODE,
    FileServer,
    libsvm_bytes,
    mnist_contents,
    publish,
    real_directories,
    usps_parts,
    write_mnist,
    write_usps_h5,
    zipcode_bytes,
)

OWN = "http://127.0.0.1:9/sets"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def served(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def offers(name: str, mirror: str | None = None) -> tuple[tuple[RemoteFile, ...], ...]:
    return cast(Any, named_dataset(name)).offers(mirror)  # type: ignore[no-any-return]


def accepting(names: tuple[str, ...], url: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name, (f"{url}{name}",), 2**20, lambda _: "any", "any") for name in names)


@pytest.mark.parametrize("source", ["small", *real_directories("mnist/train-images-idx3-ubyte.gz")])
def test_mnist_comes_from_a_server_of_ones_own(
    source: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "served"
    if isinstance(source, Path):
        directory = source
    else:
        write_mnist(directory / "mnist")
        publish(monkeypatch, "mnist", mnist_contents())
    with FileServer(served(directory)) as server:
        files = get_dataset("mnist", tmp_path / "got", Download(server.url))
        asked = len(server.requests)
        assert get_dataset("mnist", tmp_path / "got", Download(server.url)) == files
        assert len(server.requests) == asked, "what is here is not asked for again"
    assert [path.parent for path in files] == [tmp_path / "got" / "mnist"] * 4
    got, original = load_dataset("mnist", tmp_path / "got"), load_dataset("mnist", directory)
    assert got.checksum == original.checksum


@pytest.mark.parametrize("source", ["small", *real_directories("usps/usps.h5")])
def test_usps_comes_as_h5_from_a_server_of_ones_own(
    source: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "served"
    if isinstance(source, Path):
        directory = source
    else:
        write_usps_h5(directory / "usps" / "usps.h5")
        checksum = content_checksum(*read_h5(directory / "usps" / "usps.h5"))
        monkeypatch.setattr(named_dataset("usps"), "checksum", checksum, raising=False)
        h5, *others = cast(Any, named_dataset("usps")).forms
        changed = (replace(h5, files={"usps.h5": checksum}), *others)
        monkeypatch.setattr(named_dataset("usps"), "forms", changed, raising=False)
    with FileServer(served(directory)) as server:
        (path,) = get_dataset("usps", tmp_path / "got", Download(server.url))
    assert path == tmp_path / "got" / "usps" / "usps.h5"
    assert load_dataset("usps", tmp_path / "got").checksum == load_dataset("usps", directory).checksum


def test_a_damaged_file_is_fetched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist")
    files = {f"{name}.gz": gzip.compress(content) for name, content in mnist_contents().items()}
    publish(monkeypatch, "mnist", mnist_contents())
    damaged = tmp_path / "mnist" / f"{TRAIN_LABELS}.gz"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with FileServer(files) as server:
        get_dataset("mnist", tmp_path, Download(server.url))
    assert {path for path, _ in server.requests} == {f"/{damaged.name}"}
    assert len(load_dataset("mnist", tmp_path).train) == 30


def test_usps_comes_in_the_next_form_where_one_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "usps")
    files = {
        "usps.bz2": libsvm_bytes("train"),
        **{name: zipcode_bytes(part) for part, name in zip(("train", "test"), ZIPCODE, strict=True)},
    }
    with FileServer(files) as server:
        offered = tuple(accepting(names, server.url) for names in (LIBSVM, ZIPCODE))
        paths = fetch_dataset("usps", tmp_path / "usps", offered)
    assert [path.name for path in paths] == ["zip.train.gz", "zip.test.gz"]
    assert len(load_dataset("usps", tmp_path).train) == len(usps_parts()["train"][1])


def test_a_failure_lists_every_mirror_and_says_what_to_do(tmp_path: Path) -> None:
    with FileServer({}) as server:
        offered = tuple(accepting(names, server.url) for names in (LIBSVM, ZIPCODE))
        with pytest.raises(DataUnavailableError) as caught:
            fetch_dataset("usps", tmp_path / "usps", offered)
    wanted = (
        f"{server.url}usps.bz2: HTTP 404",
        f"{server.url}zip.train.gz: HTTP 404",
        str(tmp_path / "usps"),
        "MAPA_DATA_DIR",
        "MAPA_DATA_MIRROR",
        'data.set = "mnist-5k"',
    )
    for part in wanted:
        assert part in str(caught.value)


def test_ones_own_mirror_is_tried_first_side_by_side_or_in_folders() -> None:
    (files,) = offers("mnist", OWN)
    assert [file.name for file in files] == [f"{name}.gz" for name in mnist_contents()]
    for file in files:
        assert file.urls[:2] == (f"{OWN}/{file.name}", f"{OWN}/mnist/{file.name}")
        assert file.urls[2:] == offers("mnist")[0][files.index(file)].urls
        assert len(file.urls) >= 4
    h5, libsvm, zipcode = offers("usps", f"{OWN}/")
    assert h5[0].urls == (f"{OWN}/usps.h5", f"{OWN}/usps/usps.h5")
    assert libsvm[1].urls[0] == f"{OWN}/usps.t.bz2"
    assert [[file.name for file in files] for files in offers("usps")] == [
        [file.name for file in files] for files in (libsvm, zipcode)
    ]
    assert zipcode[0].urls[0] == f"{OWN}/zip.train.gz"
    public = [
        url for name in ("mnist", "usps") for files in offers(name) for file in files for url in file.urls
    ]
    assert len(public) == len(set(public)) >= 20
    assert all(url.startswith("https://") for url in public)


def test_published_forms_refuse_what_is_not_theirs(tmp_path: Path) -> None:
    write_usps_h5(tmp_path / "usps.h5")
    (tmp_path / "usps.bz2").write_bytes(libsvm_bytes("train"))
    (tmp_path / "zip.train.gz").write_bytes(zipcode_bytes("train"))
    for files in offers("usps", OWN):
        reason = files[0].refusal(tmp_path / files[0].name)
        assert reason is not None
        assert "unexpected content" in reason


def test_the_mirror_in_the_environment_must_be_a_web_address() -> None:
    assert data_mirror({}) is None
    assert data_mirror({"MAPA_DATA_MIRROR": ""}) is None
    assert data_mirror({"MAPA_DATA_MIRROR": OWN}) == OWN
    with pytest.raises(ConfigurationError, match="MAPA_DATA_MIRROR = 'file:///etc'"):
        data_mirror({"MAPA_DATA_MIRROR": "file:///etc"})
