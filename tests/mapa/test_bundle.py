"""mapa bundle: one file in one form; who bundles what is not private says so."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.sqlite_ledger import FILE_NAME
from mapa.verification.bundle import NoBundleError, read_zip, write_zip
from tests.program_support import Mapa
from tests.verification_support import PRIVATE, logged_run, parts_of

ANY = re.compile(r"[a-z0-9/.]{1,20}")


@pytest.fixture(scope="module")
def private_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logged_run(tmp_path_factory.mktemp("private"), **PRIVATE)


@pytest.fixture
def copy(private_run: Path, tmp_path: Path) -> Path:
    """The private run under another name, which anybody may change."""
    return Path(shutil.copytree(private_run, tmp_path / "elsewhere"))


def test_a_bundle_holds_the_run_and_says_what_it_holds(mapa: Mapa, private_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.zip"
    done = mapa("bundle", str(private_run), "--out", str(out), "--json")
    assert done.code == 0, done.err
    parts = parts_of(out)
    manifest = json.loads(parts.pop("manifest.json"))
    assert manifest == {key: value for key, value in json.loads(done.out).items() if key != "bundle"}
    assert (manifest["private"], manifest["not_private"]) == (True, [])
    assert [row["name"] for row in manifest["parts"]] == list(parts) == sorted(parts)
    for row in manifest["parts"]:
        assert hashlib.sha256(parts[row["name"]]).hexdigest() == row["sha256"]
    for name in ("manifest.json", "events.jsonl", "summary.json", "model.safetensors", "log/000001.seg"):
        assert parts[f"run/{name}"] == (private_run / name).read_bytes()
    assert "run/checkpoints/000001/arrays.safetensors" in parts
    assert sum(name.startswith("ledgers/") for name in parts) == 3
    ledger = json.loads(parts["ledgers/000001.json"])
    assert set(ledger) == {
        *("edge_id", "run", "shard", "releases", "charges", "kind"),
        *("dataset", "partition", "reproducible"),
    }


def test_the_same_run_gives_the_same_bytes_wherever_it_lies_and_any_zip_program_reads_them(
    mapa: Mapa, private_run: Path, copy: Path, tmp_path: Path
) -> None:
    contents = []
    for path, name in ((private_run, "one.zip"), (private_run, "two.zip"), (copy, "three.zip")):
        assert mapa("bundle", str(path), "--out", str(tmp_path / name)).code == 0
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1] == contents[2]
    done = mapa("verify", str(tmp_path / "three.zip"))
    assert done.code == 0, done.out
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.testzip() is None
        for info in archive.infolist():
            assert (info.compress_type, info.extra, info.comment) == (zipfile.ZIP_STORED, b"", b"")
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "seeded"),
        ({"algorithm": {"name": "asgd"}, "seed": None}, "no noise"),
        ({**PRIVATE, "privacy": {"noise": "exponential-norm", "epsilon": 1.0}}, "ε = ∞"),
        ({**PRIVATE, "records": {"diagnostics": True}}, "diagnostics"),
    ],
    ids=["seeded", "without-noise", "exponential-norm", "diagnostics"],
)
def test_a_run_that_is_not_private_is_bundled_only_by_a_switch_and_says_so(
    mapa: Mapa, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path, out = logged_run(tmp_path, **changes), tmp_path / "out.zip"
    refused = mapa("bundle", str(path), "--out", str(out))
    assert refused.code == 2
    assert reason in refused.err
    assert "--not-private" in refused.err
    assert not out.exists()
    assert mapa("bundle", str(path), "--out", str(out), "--not-private").code == 0
    manifest = json.loads(parts_of(out)["manifest.json"])
    assert manifest["private"] is False
    assert reason in " ".join(manifest["not_private"])
    assert mapa("verify", str(out)).code == 0


def test_a_run_that_states_no_epsilon_counts_as_not_private(
    mapa: Mapa, tmp_path: Path, private_run: Path
) -> None:
    path = tmp_path / private_run.name
    path.mkdir()
    for name in ("manifest.json", "events.jsonl", "model.safetensors"):
        (path / name).write_bytes((private_run / name).read_bytes())
    done = mapa("bundle", str(path), "--out", str(tmp_path / "out.zip"))
    assert done.code == 2
    assert "once it has ended" in done.err
    summary = json.loads((private_run / "summary.json").read_text())
    del summary["privacy"]
    (path / "summary.json").write_text(json.dumps(summary))
    done = mapa("bundle", str(path), "--out", str(tmp_path / "out.zip"))
    assert done.code == 2
    assert "no ε is stated" in done.err


def test_ledgers_are_taken_from_where_they_are_told_to_be(
    mapa: Mapa, private_run: Path, tmp_path: Path
) -> None:
    (private_run / "state").rename(tmp_path / "elsewhere")
    try:
        out = tmp_path / "out.zip"
        assert mapa("bundle", str(private_run), "--out", str(out)).code == 0
        assert not any(name.startswith("ledgers/") for name in parts_of(out))
        done = mapa(
            "bundle", str(private_run), "--out", str(out), "--ledger", str(tmp_path / "elsewhere" / "1")
        )
        assert done.code == 0, done.err
        assert sum(name.startswith("ledgers/") for name in parts_of(out)) == 1
        (tmp_path / "none").mkdir()
        done = mapa("bundle", str(private_run), "--out", str(out), "--ledger", str(tmp_path / "none"))
        assert done.code == 2
        assert "holds no ledger" in done.err
    finally:
        (tmp_path / "elsewhere").rename(private_run / "state")


# -- the zip itself -----------------------------------------------------------------------------------------

PARTS = {"manifest.json": b"{}", "a/1": b"xyz" * 10, "a/2": b"", "b": b"q" * 100}


def zipped(parts: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    write_zip(stream, {name: memoryview(content) for name, content in parts.items()})
    return stream.getvalue()


def test_the_bytes_of_a_zip_are_the_canonical_ones() -> None:
    """Pinned: a bundle is the same bytes for good, those that zipfile makes of it."""
    digest = "b73fae9b8ad6c992502f8c732a205ad1fbec22ccaf8767785fde56e23c6c8350"
    assert hashlib.sha256(zipped(PARTS)).hexdigest() == digest


def test_every_bit_of_a_zip_is_checked() -> None:
    whole = zipped(PARTS)
    assert not read_zip(memoryview(whole), ANY).faults
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            assert read_zip(memoryview(flipped), ANY).faults, (place, bit)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.from_regex(ANY, fullmatch=True).filter(str.isascii), st.binary(max_size=50), min_size=1
    )
)
def test_what_is_written_is_read(parts: dict[str, bytes]) -> None:
    found = read_zip(memoryview(zipped(parts)), ANY)
    assert not found.faults
    assert {name: bytes(content) for name, content in found.parts.items()} == parts
    assert list(found.parts) == list(parts)


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 200), st.integers(0, 200))
def test_no_bytes_make_the_reader_raise_anything_else(noise: bytes, cut: int, begin: int) -> None:
    whole = zipped(PARTS)
    content = whole[:cut] + noise + whole[cut + begin :]
    try:
        found = read_zip(memoryview(content), ANY)
    except NoBundleError:
        return
    assert found.faults or content == whole


@pytest.mark.parametrize(
    "name", ["../escape", "/etc/passwd", "run/../x", "C:x", "a\\b", "run/log/1.seg", "ü"]
)
def test_a_part_with_a_name_that_is_not_ours_is_never_read(mapa: Mapa, tmp_path: Path, name: str) -> None:
    path = tmp_path / "named.zip"
    path.write_bytes(zipped({"manifest.json": b"{}", name: b"content"}))
    assert mapa("verify", str(path)).code == 1
    assert [found.name for found in tmp_path.iterdir()] == ["named.zip"]


def test_a_compressed_zip_is_not_the_one_form(mapa: Mapa, tmp_path: Path, private_run: Path) -> None:
    out, other = tmp_path / "out.zip", tmp_path / "deflated.zip"
    assert mapa("bundle", str(private_run), "--out", str(out)).code == 0
    with zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts_of(out).items():
            archive.writestr(name, content)
    assert mapa("verify", str(other)).code == 1


def contents_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", ["log/000001.seg", "summary.json", "new.zip", "state/0/new.zip", "log"])
def test_a_bundle_never_takes_the_place_of_a_record(mapa: Mapa, copy: Path, name: str) -> None:
    before = contents_of(copy)
    done = mapa("bundle", str(copy), "--out", str(copy / name))
    assert done.code == 2
    assert f"--out {copy / name}: must be outside of {copy}" in done.err
    (copy.parent / "way").symlink_to(copy)
    assert mapa("bundle", str(copy), "--out", str(copy.parent / "way" / name)).code == 2
    state = (copy / "state").rename(copy.parent / "state")
    done = mapa("bundle", str(copy), "--ledger", str(state), "--out", str(state / "0" / FILE_NAME))
    assert (done.code, f"must be outside of {state}" in done.err) == (2, True)
    state.rename(copy / "state")
    assert contents_of(copy) == before


def test_a_bundle_is_written_to_no_pipe_device_folder_or_link(
    mapa: Mapa, private_run: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").write_bytes(b"another's")
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "dangling").symlink_to("nowhere")
    for out in (*(tmp_path / name for name in ("pipe", "folder", "link", "dangling")), Path("/dev/full")):
        done = mapa("bundle", str(private_run), "--out", str(out))
        assert done.code == 2, out
        assert f"--out {out}: must be a new file or a regular one" in done.err
    assert (tmp_path / "other").read_bytes() == b"another's"
    assert mapa("bundle", str(private_run), "--out", str(tmp_path / "other")).code == 0
    assert parts_of(tmp_path / "other")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_bundle_that_is_not_finished_leaves_nothing(
    mapa: Mapa,
    private_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | type[BaseException],
) -> None:
    def interrupted(*_: object) -> None:
        raise error

    monkeypatch.setattr("mapa.verification.bundle.write_zip", interrupted)
    (tmp_path / ".one.zip.tmp").symlink_to("victim")  # a name that a draft once had
    assert mapa("bundle", str(private_run), "--out", str(tmp_path / "one.zip")).code != 0
    assert [path.name for path in tmp_path.iterdir()] == [".one.zip.tmp"]


@pytest.mark.parametrize("run", [None, 3, "", "a/b", "a\nb", "x" * 300])
def test_a_run_without_an_id_in_its_manifest_is_not_bundled(mapa: Mapa, copy: Path, run: object) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "run": run}))
    done = mapa("bundle", str(copy), "--out", str(copy.parent / "one.zip"))
    assert (done.code, "manifest.json: run = " in done.err) == (2, True)


def test_a_run_whose_ledgers_cannot_be_read_is_not_bundled(mapa: Mapa, copy: Path) -> None:
    (copy / "state" / "1" / FILE_NAME).write_bytes(b"")
    done = mapa("bundle", str(copy), "--out", str(copy.parent / "one.zip"))
    assert done.code == 2
    assert f"{copy / 'state' / '1' / FILE_NAME}: damaged" in done.err
