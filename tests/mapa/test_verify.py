"""mapa verify: a run and its bundle pass, a damaged one does not, and what a bundle names is not run."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.sqlite_ledger import FILE_NAME
from mapa.verification.bundle import make_bundle
from mapa.verification.verify import verify
from tests.program_support import Mapa
from tests.verification_support import (
    EVENTS,
    LEDGER,
    MANIFEST,
    OWN_MODEL,
    PRIVATE,
    SUMMARY,
    Parts,
    failures,
    logged_run,
    parts_of,
    rewritten,
    spoiled,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded run over a network that loses and doubles messages."""
    return logged_run(tmp_path_factory.mktemp("runs"), share=0.2)


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    out = run.parent / "seeded.mapa.zip"
    make_bundle(run, out, (), not_private=True)
    return out


@pytest.fixture(scope="module")
def private_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logged_run(tmp_path_factory.mktemp("private"), **PRIVATE)


@pytest.fixture(scope="module")
def private_bundle(private_run: Path) -> Path:
    out = private_run.parent / "private.mapa.zip"
    make_bundle(private_run, out, (), not_private=False)
    return out


def verified(mapa: Mapa, *words: object) -> tuple[int, dict[str, Any]]:
    done = mapa("verify", *map(str, words), "--json")
    return done.code, json.loads(done.out)


def of_status(document: dict[str, Any], status: str) -> set[str]:
    return {check["name"] for check in document["checks"] if check["status"] == status}


@pytest.mark.parametrize("subject", ["run", "bundle", "private_run", "private_bundle"])
def test_what_nobody_has_changed_passes(mapa: Mapa, subject: str, request: pytest.FixtureRequest) -> None:
    code, document = verified(mapa, request.getfixturevalue(subject))
    assert code == 0, failures(document)
    assert document["verified"]
    names = of_status(document, "passed")
    assert names >= {"scenario", "log", "replay", "continuity", "exactly once", "events", "summary"}
    assert names >= {"fields", "evaluations", "ledgers", "releases", "ε", "model"}
    assert ({"zip", "hashes", "manifest"} <= names) == ("bundle" in subject)
    assert not of_status(document, "not checked")
    assert {claim["name"] for claim in document["claimed"]} == {"origin", "metrics", "times", "shard sizes"}


def test_the_table_names_checks_parts_and_what_was_not_checked(mapa: Mapa, bundle: Path) -> None:
    done = mapa("verify", str(bundle))
    assert done.code == 0
    for words in ("exactly once", "run/model.safetensors", "bit for bit", "accounted again"):
        assert words in done.out
    assert "Claimed, not checked:\n- run/manifest.json: versions, machine" in done.out
    assert done.out.splitlines()[-1].startswith("verified: ")
    assert "\x1b" not in done.out


def test_one_bit_flipped_in_each_part_is_found_and_the_part_named(
    mapa: Mapa, bundle: Path, tmp_path: Path
) -> None:
    whole, parts = bundle.read_bytes(), parts_of(bundle)
    at = 0
    for name, content in parts.items():
        begin = whole.index(content, at)
        for place in (begin, begin + len(content) // 2, begin + len(content) - 1):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << place % 8
            (tmp_path / "flipped.zip").write_bytes(flipped)
            code, document = verified(mapa, tmp_path / "flipped.zip")
            assert code == 1, (name, place)
            assert name in failures(document), (name, place)
        at = begin + len(content)


@pytest.mark.parametrize("cut", [1, 22, 500, 0.5])
def test_a_bundle_that_is_cut_off_or_goes_on_is_found(
    mapa: Mapa, bundle: Path, tmp_path: Path, cut: float
) -> None:
    whole = bundle.read_bytes()
    keep = len(whole) - int(cut) if cut >= 1 else int(len(whole) * cut)
    (tmp_path / "cut.zip").write_bytes(whole[:keep])
    assert verified(mapa, tmp_path / "cut.zip")[0] == 1
    (tmp_path / "long.zip").write_bytes(whole + b"\0" * int(max(cut, 1)))
    assert verified(mapa, tmp_path / "long.zip")[0] == 1


def test_what_is_neither_bundle_nor_run_exits_with_2(mapa: Mapa, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"no zip at all, but of some length")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for name in ("other", "empty", "folder", "missing"):
        done = mapa("verify", str(tmp_path / name))
        assert done.code == 2, name
        assert not done.out


@pytest.mark.parametrize(
    "claims",
    [
        {"private": True, "not_private": []},
        {"versions": {"numpy": "1"}},
        {"blessed": True},
        {"format": "mapa-bundle-1"},  # its ledgers say neither data set nor partition nor seed
    ],
)
def test_a_bundle_says_of_its_run_what_its_parts_say(
    mapa: Mapa, bundle: Path, claims: dict[str, Any]
) -> None:
    assert b'"private": false' in parts_of(bundle)["manifest.json"]
    code, document = verified(mapa, rewritten(bundle, lambda _: None, **claims))
    assert code == 1
    assert next(iter(claims)) in failures(document)["manifest.json"]


# -- other people's bundles ---------------------------------------------------------------------------------


def test_a_run_with_an_algorithm_of_its_own_is_checked_once_it_is_allowed(mapa: Mapa, tmp_path: Path) -> None:
    name = "tests.algorithms.fedbuff:FedBuff"
    path = logged_run(tmp_path, algorithm={"name": name, "rate": 0.2, "size": 3})
    code, document = verified(mapa, path)
    assert code == 1, "code of the run's own that nobody allowed leaves everything unchecked"
    assert not failures(document)
    assert of_status(document, "not checked") >= {"scenario", "replay"}
    assert "--allow tests.algorithms.fedbuff:FedBuff" in json.dumps(document)
    code, document = verified(mapa, path, "--allow", name)
    assert code == 0, failures(document)
    assert "model" in of_status(document, "passed")


def test_a_model_of_one_s_own_is_replayed_without_its_code(mapa: Mapa, tmp_path: Path) -> None:
    """x₁ was drawn without a seed: the first checkpoint has it."""
    path = logged_run(tmp_path, model={"name": OWN_MODEL}, **PRIVATE)
    code, document = verified(mapa, path)
    assert code == 0, failures(document)
    told = {(check["name"], check["status"]): check["detail"] for check in document["checks"]}
    assert "x₁ as the first checkpoint has it" in told["replay", "passed"]
    assert "bit for bit" in told["model", "passed"]
    assert "blocks" in {claim["name"] for claim in document["claimed"]}
    code, document = verified(mapa, path, "--allow", OWN_MODEL)
    assert code == 0
    assert "blocks" not in {claim["name"] for claim in document["claimed"]}


@pytest.mark.parametrize("left", [False, True])
def test_a_run_without_its_log_says_what_was_not_checked(mapa: Mapa, tmp_path: Path, left: bool) -> None:
    """A cloud that was killed at the very end leaves the last segments of a log that is not kept."""
    path = logged_run(tmp_path, keep=False, records={"keep_gradients": False})
    assert not (path / "log").exists()
    if left:
        (path / "log").mkdir()
        (path / "log" / "000003.seg").write_bytes(b"")
    code, document = verified(mapa, path)
    assert code == 1
    assert not failures(document)
    assert not document["verified"]
    assert of_status(document, "not checked") == {"log"}
    assert mapa("verify", str(path)).out.splitlines()[-1].startswith("not verified: ")
    code, document = verified(mapa, path, "--allow-unlogged")
    assert code == 0
    assert {claim["name"] for claim in document["claimed"]} >= {"log", "model"}
    assert {"ε", "releases", "end", "events", "summary", "ledgers"} <= of_status(document, "passed")


def test_ledgers_that_stayed_on_their_edges_are_named(mapa: Mapa, bundle: Path) -> None:
    def keep_one(parts: Parts) -> None:
        del parts[LEDGER], parts["ledgers/000002.json"]

    code, document = verified(mapa, rewritten(bundle, keep_one))
    assert code == 0
    assert "ledgers" in of_status(document, "passed")
    [claim] = [one for one in document["claimed"] if one["name"] == "ledgers"]
    assert "2 edges" in claim["detail"]


@pytest.fixture
def moved(private_run: Path, tmp_path: Path) -> Path:
    """The private run under another name, which anybody may change."""
    return Path(shutil.copytree(private_run, tmp_path / "elsewhere"))


def in_account(run: Path, number: int, change: str) -> None:
    connection = sqlite3.connect(run / "state" / str(number) / FILE_NAME)
    connection.execute(f"UPDATE account SET {change}")
    connection.commit()
    connection.close()


def test_a_run_that_was_moved_is_still_itself(mapa: Mapa, moved: Path, tmp_path: Path) -> None:
    code, document = verified(mapa, moved)
    assert code == 0, failures(document)
    assert "ledgers" in of_status(document, "passed")
    (moved / "state").rename(tmp_path / "state")
    code, document = verified(mapa, moved, "--ledger", tmp_path / "state")
    assert code == 0, failures(document)
    assert "ledgers" in of_status(document, "passed")


@pytest.mark.parametrize(
    ("change", "of"),
    [
        ("last_sequence = 2, charges = 2", [0]),
        ("run = 'other'", [0]),
        ("run = 'other'", [0, 1, 2]),  # not taken for a run without ledgers
        ("reproducible = 1", [0]),
    ],
)
def test_ledgers_that_contradict_the_run_are_named(
    mapa: Mapa, moved: Path, change: str, of: list[int]
) -> None:
    for number in of:
        in_account(moved, number, change)
    code, document = verified(mapa, moved)
    assert code == 1
    for number in of:
        assert failures(document)[str(moved / "state" / str(number) / FILE_NAME)].startswith("ledgers: ")


def test_a_ledger_that_cannot_be_read_is_a_row_and_the_rest_is_checked(mapa: Mapa, moved: Path) -> None:
    ledgers = [moved / "state" / str(number) / FILE_NAME for number in range(3)]
    ledgers[0].write_bytes(b"")
    ledgers[1].unlink()
    os.mkfifo(ledgers[1])
    in_account(moved, 2, f"mechanism = '{'[' * 5000}'")
    code, document = verified(mapa, moved)
    assert code == 1
    assert failures(document).keys() == set(map(str, ledgers))
    assert "model" in of_status(document, "passed")


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_nothing_in_a_record_of_somebody_else_raises(bundle: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([MANIFEST, SUMMARY, LEDGER]))

    def edit(parts: Parts) -> None:
        parts[name] = json.dumps(spoiled(data, json.loads(parts[name]), VALUES)).encode()

    assert verify(rewritten(bundle, edit), ())


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b'{"a": ' * 50 + b"1" + b"}" * 50,
        b'{"a": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe",
        b"[]",
        b"",
    ],
)
@pytest.mark.parametrize("name", [MANIFEST, SUMMARY, EVENTS])
def test_json_that_is_none_is_named(mapa: Mapa, bundle: Path, content: bytes, name: str) -> None:
    if name == EVENTS and not content:
        content = b"\n"
    edited = rewritten(bundle, lambda parts: parts.update({name: content}))
    code, document = verified(mapa, edited)
    assert code == 1
    assert name in failures(document)


def test_a_cloud_that_was_resumed_twice_before_it_took_anything_is_no_fault(mapa: Mapa, bundle: Path) -> None:
    """The run's clock goes on at the last record of the log: of what came behind it the next cloud knows nothing."""

    def resume_twice(parts: Parts) -> None:
        updates = json.loads(parts[SUMMARY])["updates"]
        for time in (2e6, 1e6):
            line = {"event": "resumed", "t": updates, "torn_bytes": 0, "time": time}
            parts[EVENTS] += json.dumps(line).encode() + b"\n"

    code, document = verified(mapa, rewritten(bundle, resume_twice))
    assert code == 0, failures(document)
