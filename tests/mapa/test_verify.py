"""mapa verify: a run and its bundle pass; whoever changes anything, hashes made right or not, is found."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from common.records.checkpoint import pack, unpack
from common.records.directory import ordered
from edge.sqlite_ledger import FILE_NAME
from mapa.verification.bundle import make_bundle
from mapa.verification.verify import verify
from tests.program_support import Mapa
from tests.verification_support import (
    EVENTS,
    LEDGER,
    MANIFEST,
    MODEL,
    OWN_MODEL,
    PRIVATE,
    SEGMENT,
    SUMMARY,
    Change,
    Parts,
    failures,
    gradients_in,
    in_json,
    in_ledger,
    in_log,
    in_manifest,
    in_summary,
    logged_run,
    nudged,
    parts_of,
    rewritten,
)

STATE, ARRAYS = "run/checkpoints/000001/state.json", "run/checkpoints/000001/arrays.safetensors"


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


# -- changes by somebody who makes the hashes right again ---------------------------------------------------


def nudge_a_gradient(entries: list[Any]) -> None:
    place = gradients_in(entries)[20]
    entries[place] = nudged(entries[place])


def drop_a_record(entries: list[Any]) -> None:
    del entries[gradients_in(entries)[10]]


def drop_the_last(entries: list[Any]) -> None:
    del entries[gradients_in(entries)[-1] :]


def double_a_record(entries: list[Any]) -> None:
    place = gradients_in(entries)[10]
    entries.insert(place, entries[place])


def neighbours_of_different_edges(entries: list[Any]) -> tuple[int, int]:
    pairs = itertools.pairwise(gradients_in(entries)[10:])
    return next(
        (one, other)
        for one, other in pairs
        if other == one + 1 and entries[one].edge_id != entries[other].edge_id
    )


def swap_two(entries: list[Any]) -> None:
    one, other = neighbours_of_different_edges(entries)
    entries[one], entries[other] = entries[other], entries[one]


def swap_two_and_their_t(entries: list[Any]) -> None:
    one, other = neighbours_of_different_edges(entries)
    swap_two(entries)
    first, second = entries[other].t, entries[one].t
    entries[one], entries[other] = entries[one]._replace(t=first), entries[other]._replace(t=second)


def turn_time_back(entries: list[Any]) -> None:
    place = gradients_in(entries)[10]
    entries[place] = entries[place]._replace(time=entries[place - 1].time - 0.5)


def end_in_eternity(entries: list[Any]) -> None:
    entries[-1] = entries[-1]._replace(time=math.inf)


def forget_a_hello(entries: list[Any]) -> None:
    del entries[0]


def change_the_model(parts: Parts) -> None:
    tensors = {name: np.array(tensor) for name, tensor in load(parts[MODEL]).items()}
    for tensor in tensors.values():
        tensor.reshape(-1)[0] += 1e-3
    size = int.from_bytes(parts[MODEL][:8], "little")
    metadata = json.loads(parts[MODEL][8 : 8 + size])["__metadata__"]
    parts[MODEL] = ordered(save(tensors, metadata=metadata))


def change_a_block(parts: Parts) -> None:
    content = bytearray(parts[MODEL])
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = next(key for key in header if key not in ("x", "__metadata__"))
    content[8 + size + header[name]["data_offsets"][0]] ^= 1
    parts[MODEL] = bytes(content)


def in_events(old: bytes, new: bytes) -> Change:
    def edit(parts: Parts) -> None:
        assert old in parts[EVENTS]
        parts[EVENTS] = parts[EVENTS].replace(old, new, 1)

    return edit


def halve_the_seconds(summary: dict[str, Any]) -> None:
    summary["seconds"] /= 2
    summary["iterations_per_second"] *= 2


def double_a_ledger(parts: Parts) -> None:
    parts["ledgers/000009.json"] = parts[LEDGER]


def one_more_line(line: bytes) -> Change:
    return lambda parts: parts.update({EVENTS: parts[EVENTS] + line + b"\n"})


def begin_elsewhere(parts: Parts) -> None:
    """Let the run begin at another x₁, with the checkpoint's own checksums right."""
    state = unpack(parts[STATE], parts[ARRAYS])
    state["server"]["model"] = state["server"]["model"] + np.float32(1)
    parts[STATE], parts[ARRAYS] = pack(state)


def begin_with_an_edge(parts: Parts) -> None:
    state = unpack(parts[STATE], parts[ARRAYS])
    state["server"]["t"] = 2
    parts[STATE], parts[ARRAYS] = pack(state)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (in_log(nudge_a_gradient), MODEL),
        (in_log(drop_a_record), SEGMENT),
        (in_log(drop_the_last), SUMMARY),
        (in_log(double_a_record), SEGMENT),
        (in_log(swap_two), SEGMENT),
        (in_log(swap_two_and_their_t), EVENTS),
        (in_log(forget_a_hello), SEGMENT),
        (change_the_model, MODEL),
        (change_a_block, MODEL),
        (in_summary(lambda s: s.update(updates=s["updates"] + 1)), SUMMARY),
        (in_summary(lambda s: s["edges"][0].update(applied=1)), SUMMARY),
        (in_summary(lambda s: s["stages"][0].update(learning_rate=1.0)), SUMMARY),
        (in_summary(lambda s: s["evaluations"][-1].update(accuracy=0.999)), SUMMARY),
        (in_summary(lambda s: s.update(seed=8)), SUMMARY),
        (in_summary(lambda s: s["refused"].update(norm=3)), SUMMARY),
        (in_events(b'"staleness": 2', b'"staleness": 1'), EVENTS),
        (in_events(b'"event": "edge_joined"', b'"event": "edge_jumped"'), EVENTS),
        (in_summary(lambda s: s.update(best_accuracy=0.999)), SUMMARY),
        (in_summary(lambda s: s["metrics"][1].update(better="higher")), SUMMARY),
        (in_summary(lambda s: s.update(metrics=[])), SUMMARY),
        (in_summary(lambda s: s.update(diagnostics=True)), SUMMARY),
        (in_summary(lambda s: s["noise"].update(noise_multiplier=[99.0])), SUMMARY),
        (in_summary(lambda s: s.update(blessed=True)), SUMMARY),
        (in_summary(lambda s: s.update(virtual_seconds=1.0)), SUMMARY),
        (in_summary(halve_the_seconds), SUMMARY),
        (in_summary(lambda s: s.update(iterations_per_second=1e6)), SUMMARY),
        (in_summary(lambda s: s["dropped"].update(blessed=1)), SUMMARY),
        (in_summary(lambda s: s["dropped"].update(hello=-1)), SUMMARY),
        (in_summary(lambda s: s["network"][0].update(blessed=1)), SUMMARY),
        (in_summary(lambda s: s["network"][0].update(applied=1)), SUMMARY),
        (in_summary(lambda s: s["network"].pop()), SUMMARY),
        (in_manifest(lambda m: m.update(blessed=True)), MANIFEST),
        (lambda parts: parts.pop(STATE), "checkpoints/000001/state.json"),
        (lambda parts: parts.pop(ARRAYS), "checkpoints/000001/arrays.safetensors"),
        (lambda parts: parts.update({STATE: b'{"a":' * 50_000}), STATE),
        (lambda parts: parts.update({ARRAYS: b"\0" * 40}), ARRAYS),
        (one_more_line(b'{"event": "blessed"}'), EVENTS),
        (in_log(turn_time_back), SEGMENT),
        (in_log(end_in_eternity), SEGMENT),
        (one_more_line(b'{"event": "resumed", "t": 3, "torn_bytes": 0, "time": 1e6}'), EVENTS),
        (one_more_line(b'{"event": "resumed", "t": 60, "torn_bytes": -1, "time": 1e6}'), EVENTS),
        (one_more_line(b'{"event": "halted", "t": 60, "reason": "finished", "time": 0.0}'), EVENTS),
        (in_events(b'"time": ', b'"time": 9'), EVENTS),
        (in_manifest(lambda m: m["versions"].pop("numpy")), MANIFEST),
        (in_manifest(lambda m: m["versions"].update(numpy=2)), MANIFEST),
        (in_manifest(lambda m: m.update(versions="all")), MANIFEST),
        (in_manifest(lambda m: m.update(format=2)), MANIFEST),
        (one_more_line(b'{"event": "gradient_refused", "reason": "norm"}'), EVENTS),
        (in_ledger(charges=0), LEDGER),
        (in_ledger(shard=7), LEDGER),
        (in_ledger(run="other"), LEDGER),
        (in_ledger(dataset="x"), LEDGER),
        (in_ledger(partition="iid K=9 seed=0"), LEDGER),
        (in_ledger(reproducible=False), LEDGER),
        (in_manifest(lambda m: m.update(data=dict.fromkeys(m["data"], "1" * 64))), LEDGER),
        (in_manifest(lambda m: m.update(run=None)), MANIFEST),
        (double_a_ledger, LEDGER),
        (in_json(LEDGER, lambda ledger: ledger.update(releases=ledger["releases"] - 3)), LEDGER),
        (in_ledger(edge_id="e" * 32), LEDGER),
        (begin_elsewhere, ARRAYS),
        (begin_with_an_edge, STATE),
        (in_manifest(lambda m: m["scenario"].update(seed=None)), MANIFEST),
    ],
)
def test_a_change_with_right_hashes_is_found_by_what_the_parts_say(
    mapa: Mapa, bundle: Path, change: Change, part: str
) -> None:
    code, document = verified(mapa, rewritten(bundle, change))
    assert code == 1
    assert part in failures(document), failures(document)
    assert of_status(document, "passed") >= {"zip", "hashes"}


@pytest.mark.parametrize(
    "change",
    [
        lambda privacy: privacy.update(epsilon=privacy["epsilon"] * 0.99),
        lambda privacy: privacy["edges"][1].update(epsilon=privacy["edges"][1]["epsilon"] / 2),
        lambda privacy: privacy.update(delta=1e-9),
        lambda privacy: privacy["words"].__setitem__(0, "Everything is private."),
        lambda privacy: privacy["edges"][0].update(noise_multiplier=8.0),
        lambda privacy: privacy["edges"][0].update(releases=1),
        lambda privacy: privacy.update(reproducible_noise=True),
    ],
)
def test_an_epsilon_that_the_releases_do_not_have_is_found(
    mapa: Mapa, private_bundle: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    edited = rewritten(private_bundle, in_summary(lambda s: change(s["privacy"])))
    code, document = verified(mapa, edited)
    assert code == 1
    assert failures(document)[SUMMARY].startswith("ε: privacy")


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


def test_code_that_a_bundle_names_is_imported_only_where_it_is_allowed(
    mapa: Mapa, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for table, key in (("algorithm", "name"), ("privacy", "noise"), ("model", "name"), ("data", "set")):
        edited = rewritten(
            bundle,
            in_manifest(lambda value, t=table, k=key: value["scenario"][t].update({k: "planted:Any"})),  # type: ignore[misc]
        )
        verified(mapa, edited)
        assert not (tmp_path / "imported").exists(), (table, key)


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


def test_releases_that_the_statement_does_not_count_are_found(mapa: Mapa, bundle: Path) -> None:
    """They may be of a later run of the name, which has the same account: then this ledger proves nothing here."""

    def more(value: dict[str, Any]) -> None:
        value.update(releases=value["releases"] + 5, charges=value["charges"] + 5)

    path = rewritten(bundle, in_json(LEDGER, more))
    code, document = verified(mapa, path)
    assert code == 1
    assert "of a later run of the name" in failures(document)[LEDGER]


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


@pytest.mark.parametrize("change", ["last_sequence = 2, charges = 2", "run = 'other'", "reproducible = 1"])
def test_a_ledger_that_contradicts_the_run_is_named(mapa: Mapa, moved: Path, change: str) -> None:
    in_account(moved, 0, change)
    code, document = verified(mapa, moved)
    assert code == 1
    assert failures(document)[str(moved / "state" / "0" / FILE_NAME)].startswith("ledgers: ")


def test_ledgers_of_another_run_are_not_taken_for_none(mapa: Mapa, moved: Path) -> None:
    for number in range(3):
        in_account(moved, number, "run = 'other'")
    code, document = verified(mapa, moved)
    assert code == 1
    assert len([part for part in failures(document) if part.endswith(FILE_NAME)]) == 3


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
        value = whole = json.loads(parts[name])
        for _ in range(4):
            key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
            inner = value[key]
            if not inner or not isinstance(inner, dict | list) or data.draw(st.booleans()):
                break
            value = inner
        if data.draw(st.booleans()) and isinstance(value, dict):
            del value[key]
        else:
            value[key] = data.draw(VALUES)
        parts[name] = json.dumps(whole).encode()

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
