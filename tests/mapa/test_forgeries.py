"""Forgeries by someone who makes hashes, checksums and copies right again: none is verified, and a check names each."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from common.records.checkpoint import pack, unpack
from common.records.directory import ordered
from common.records.gradient_log import Entry
from common.scenario.scenario import parse_scenario
from mapa.recording import record_simulation
from mapa.releases import privacy_of
from mapa.simulation.simulator import World
from mapa.verification.bundle import make_bundle
from mapa.verification.check import Status, is_verified
from mapa.verification.checks_privacy import why_not_private
from mapa.verification.verify import verify
from tests.core_support import small_dataset, small_scenario
from tests.verification_support import (
    EVENTS,
    LEDGER,
    MANIFEST,
    MODEL,
    PRIVATE,
    SEGMENT,
    SUMMARY,
    Change,
    Parts,
    gradients_in,
    in_json,
    in_log,
    in_manifest,
    in_summary,
    logged_run,
    nudged,
    parts_of,
    rewritten,
    without,
)

UNLOGGED = {"keep_gradients": False}
SHUFFLED = {**PRIVATE, "data": {"sampler": "shuffled"}}
STATE, ARRAYS = (f"run/checkpoints/000001/{name}" for name in ("state.json", "arrays.safetensors"))


def _simulated(runs: Path, **changes: Any) -> Path:
    world = World.on(small_scenario(**{"edges": 3, "iterations": 30, **PRIVATE, **changes}), small_dataset())
    return Path(record_simulation(world, name="one", runs=runs)["path"])


BASES: dict[str, Callable[[Path], Path]] = {
    "logged": lambda runs: logged_run(runs, iterations=30, **PRIVATE),
    "seeded": lambda runs: logged_run(runs, iterations=30, share=0.2),
    "shuffled": lambda runs: logged_run(runs, iterations=30, batch_size=20, **SHUFFLED),
    "unlogged": lambda runs: logged_run(runs, iterations=30, keep=False, records=UNLOGGED, **PRIVATE),
    "simulated": _simulated,
    "simulated, logged": lambda runs: _simulated(runs, records={"keep_gradients": True}),
    "coded": lambda runs: _simulated(
        runs, records={"keep_gradients": True}, compression={"gradients": "int8"}
    ),
    "without events": lambda runs: _simulated(runs, records={"keep_gradients": True, "events": False}),
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def bundle(base: str) -> Path:
        if base not in made:
            run = BASES[base](tmp_path_factory.mktemp("base"))
            made[base] = run.parent / "run.mapa.zip"
            make_bundle(run, made[base], (), not_private=base == "seeded")
        return made[base]

    return bundle


# -- tools of a forger ----------------------------------------------------------------------------------------

Lines = list[dict[str, Any]]
read = json.loads


def write(parts: Parts, name: str, value: dict[str, Any]) -> None:
    parts[name] = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def events(change: Callable[[Lines], Lines]) -> Change:
    def forge(parts: Parts) -> None:
        lines = change([json.loads(line) for line in parts[EVENTS].splitlines()])
        parts[EVENTS] = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)

    return forge


def both(*forgeries: Change) -> Change:
    def forge(parts: Parts) -> None:
        for one in forgeries:
            one(parts)

    return forge


def rescenario(parts: Parts, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the scenario, and every hash and copy of it."""
    value, stated = read(parts[MANIFEST]), read(parts[SUMMARY])
    change(value["scenario"])
    value["scenario"] = parse_scenario(value["scenario"]).canonical()
    text = json.dumps(value["scenario"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    value["scenario_sha256"] = stated["scenario_sha256"] = digest
    write(parts, MANIFEST, value)
    write(parts, SUMMARY, stated)
    remodel(parts, lambda _: None)


def remodel(parts: Parts, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the model's tensors, with metadata that fit the records."""
    tensors = {name: np.array(tensor) for name, tensor in load(parts[MODEL]).items()}
    change(tensors)
    value, stated = read(parts[MANIFEST]), read(parts[SUMMARY])
    metadata = {"scenario_sha256": value["scenario_sha256"], "updates": str(stated["updates"])}
    parts[MODEL] = ordered(save(tensors, metadata=metadata))


def restate(parts: Parts, releases: Callable[[list[int]], list[int]] = list) -> None:
    """State other releases, with the ε that they have."""
    value, stated = read(parts[MANIFEST]), read(parts[SUMMARY])
    scenario = parse_scenario(value["scenario"])
    stated["releases"] = releases(stated["releases"])
    rows = [
        (row["edge"], row["edge_id"], scenario.law(row["edge"]), value["shard_sizes"][row["edge"]], count)
        for row, count in zip(stated["edges"], stated["releases"], strict=True)
    ]
    stated["privacy"] = privacy_of(scenario, rows)
    write(parts, SUMMARY, stated)


no_log = without("run/log/", "run/checkpoints/")
no_ledgers = without("ledgers/")


def relabel(parts: Parts) -> None:
    """Call a networked run simulated: no log, no ledgers, edges renamed, keys of its engine, and every weight 7."""
    no_log(parts)
    no_ledgers(parts)
    value, stated = read(parts[MANIFEST]), read(parts[SUMMARY])
    ids = {row["edge_id"]: f"edge-{row['edge']}" for row in stated["edges"]}
    for name in (SUMMARY, EVENTS):
        for old, new in ids.items():
            parts[name] = parts[name].replace(old.encode(), new.encode())
    stated = read(parts[SUMMARY])
    del stated["network"], stated["dropped"]
    stated |= {"engine": "events", "virtual_seconds": None}
    value["engine"] = "events"
    write(parts, SUMMARY, stated)
    write(parts, MANIFEST, value)
    filled(7)(parts)


def unlog(parts: Parts) -> None:
    """Say that the run kept no gradients, and put another model in place."""
    no_log(parts)
    rescenario(parts, lambda scenario: scenario["records"].update(keep_gradients=False))
    filled(7)(parts)


def weaker_noise(parts: Parts) -> None:
    """State a noise multiplier that the scenario and its hash then have as well: the ledgers do not."""
    rescenario(parts, lambda scenario: scenario["privacy"].update(noise_multiplier=[40.0]))
    restate(parts)


def weaker_noise_in_events(parts: Parts) -> None:
    weaker_noise(parts)
    parts[EVENTS] = parts[EVENTS].replace(b'"noise_multiplier": 4.0', b'"noise_multiplier": 40.0')


def an_evaluation_of_its_own(parts: Parts) -> None:
    """Tell of a model that nothing asked to be evaluated."""

    def told(lines: Lines) -> Lines:
        place = max(place for place, line in enumerate(lines) if line["event"] == "evaluated")
        return [*lines[:place], lines[place] | {"t": lines[place]["t"] - 1}, *lines[place:]]

    def summed(value: dict[str, Any]) -> None:
        row = value["evaluations"][-1]
        value["evaluations"].insert(-1, row | {"updates": row["updates"] - 1})

    both(events(told), in_summary(summed))(parts)


def larger_shards(parts: Parts) -> None:
    in_manifest(lambda value: value.update(shard_sizes=[10 * size for size in value["shard_sizes"]]))(parts)
    restate(parts)


def seven_updates(parts: Parts) -> None:
    """Let the summary say that seven updates more were applied, wherever it counts them."""

    def change(value: dict[str, Any]) -> None:
        value["updates"] += 7
        value["edges"][0]["applied"] += 7
        value["network"][0]["applied"] += 7
        value["iterations_per_second"] = value["updates"] / value["seconds"] if value["seconds"] else None

    in_summary(change)(parts)
    remodel(parts, lambda _: None)


def charged_once(value: dict[str, Any]) -> None:
    for row in value["privacy"]["edges"]:
        row["charges"] = 1


def one_more_refusal(value: dict[str, Any]) -> None:
    """Count a refusal that has no line."""
    value["refused"][next(iter(value["refused"]))] += 1


def other_seconds(value: dict[str, Any]) -> None:
    value.update(seconds=5.0, iterations_per_second=value["updates"] / 5.0)


def begin_elsewhere(parts: Parts, **changes: Any) -> None:
    """Let the run begin with another state, or at another x₁, with the checkpoint's own checksums right."""
    state = unpack(parts[STATE], parts[ARRAYS])
    state["server"] |= changes or {"model": state["server"]["model"] + np.float32(1)}
    parts[STATE], parts[ARRAYS] = pack(state)


def change_a_block(parts: Parts) -> None:
    content = bytearray(parts[MODEL])
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = next(key for key in header if key not in ("x", "__metadata__"))
    content[8 + size + header[name]["data_offsets"][0]] ^= 1
    parts[MODEL] = bytes(content)


# -- in the log


def stretch(entries: list[Entry]) -> list[Entry]:
    """Let a second pass between two records of the log."""
    return [entry._replace(time=entry.time + place) for place, entry in enumerate(entries)]


def at_gradient(number: int, change: Callable[[list[Entry], int], object]) -> Change:
    """Change the log's records in place, at this one of its gradients."""

    def edit(entries: list[Entry]) -> None:
        change(entries, gradients_in(entries)[number])

    return in_log(edit)


def replaced(change: Callable[[list[Entry], int], Entry]) -> Callable[[list[Entry], int], None]:
    def edit(entries: list[Entry], place: int) -> None:
        entries[place] = change(entries, place)

    return edit


def swapped(*, with_t: bool) -> Change:
    """Swap two neighbours of different edges."""

    def edit(entries: list[Entry]) -> None:
        one, other = next(
            (one, other)
            for one, other in itertools.pairwise(gradients_in(entries))
            if other == one + 1 and entries[one].edge_id != entries[other].edge_id
        )
        first, second = entries[other], entries[one]
        if with_t:
            first, second = first._replace(t=second.t), second._replace(t=first.t)
        entries[one], entries[other] = first, second

    return in_log(edit)


# -- in values


def at(part: str, *path: str | int, **changes: Any) -> Change:
    """Change keys of an object within a JSON part."""

    def change(value: Any) -> None:
        for key in path:
            value = value[key]
        value.update(changes)

    return in_json(part, change)


def restated(releases: Callable[[list[int]], list[int]]) -> Change:
    return lambda parts: restate(parts, releases)


def remodelled(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda parts: remodel(parts, change)


def filled(value: float, *besides: str) -> Change:
    return remodelled(lambda tensors: [x.fill(value) for name, x in tensors.items() if name not in besides])


def in_event(name: str, **changes: Any) -> Change:
    """Change the first line of an event."""

    def change(lines: Lines) -> Lines:
        next(line for line in lines if line["event"] == name).update(changes)
        return lines

    return events(change)


def drop(event: str, number: int = 0) -> Change:
    def change(lines: Lines) -> Lines:
        place = [place for place, line in enumerate(lines) if line["event"] == event][number]
        return lines[:place] + lines[place + 1 :]

    return events(change)


def one_more_line(**changes: Any) -> Change:
    """Write a line behind the last one, of its time."""
    return events(lambda lines: [*lines, {"t": lines[-1]["t"], "time": lines[-1]["time"], **changes}])


EPSILON = in_summary(lambda value: value["privacy"].update(epsilon=value["privacy"]["epsilon"] * 0.99))
INTERRUPTED = in_event("halted", reason="interrupted")
MORE_RELEASES = at(LEDGER, releases=10**9, charges=10**9)
NOTHING = at(SUMMARY, privacy={"words": ["Nothing was released."], "edges": []})
A_REFUSAL = {"event": "gradient_refused", "edge_id": "edge-x", "sequence": 1, "t": 1, "reason": "duplicate"}


def in_other_codings(*names: str) -> Change:
    """Say that the run's gradients had other codings than those in the log."""
    table = {"gradients": "float32", "offered": list(names)}
    return lambda parts: rescenario(parts, lambda scenario: scenario.update(compression=table))


FORGERIES: tuple[
    tuple[str, str, Change], ...
] = (  # the run, the check or part that fails, and what is changed
    # ε, and the releases that it is of
    *((base, "ε", EPSILON) for base in ("simulated", "unlogged", "logged")),
    ("logged", "ε", at(SUMMARY, "privacy", "edges", 1, epsilon=0.1)),
    ("logged", "ε", at(SUMMARY, "privacy", delta=1e-9)),
    ("logged", "ε", in_summary(lambda value: value["privacy"]["words"].append("Everything is private."))),
    ("logged", "ε", at(SUMMARY, "privacy", "edges", 0, noise_multiplier=8.0)),
    ("logged", "ε", at(SUMMARY, "privacy", "edges", 0, releases=1)),
    ("logged", "ε", at(SUMMARY, "privacy", reproducible_noise=True)),
    ("simulated", "ε", NOTHING),
    ("simulated", "ε", in_summary(lambda value: value.pop("privacy"))),
    ("shuffled", "ε", in_summary(charged_once)),
    ("simulated", "ε", weaker_noise),
    ("simulated", "releases", at(SUMMARY, releases=[1, 1, 1])),
    *((base, "releases", restated(lambda counts: [1] * len(counts))) for base in ("simulated", "unlogged")),
    *(
        (base, "releases", restated(lambda counts: [counts[0] - 1, *counts[1:]]))
        for base in ("simulated", "logged")
    ),
    # codings that no cloud of the run would have taken
    *(("coded", "replay", in_other_codings(*names)) for names in ((), ("float16",))),
    # ledgers
    *(("shuffled", "ledgers", at(LEDGER, charges=charges)) for charges in (1, 10)),
    *((base, "ledgers", MORE_RELEASES) for base in ("logged", "unlogged")),
    ("unlogged", "ledgers", weaker_noise_in_events),
    ("logged", "ledgers", larger_shards),
    ("seeded", LEDGER, at(LEDGER, charges=0)),
    ("seeded", LEDGER, at(LEDGER, shard=7)),
    ("seeded", LEDGER, at(LEDGER, run="other")),
    ("seeded", LEDGER, at(LEDGER, dataset="x")),
    ("seeded", LEDGER, at(LEDGER, partition="iid K=9 seed=0")),
    ("seeded", LEDGER, at(LEDGER, reproducible=False)),
    ("seeded", LEDGER, at(LEDGER, edge_id="e" * 32)),
    ("seeded", LEDGER, in_manifest(lambda value: value.update(data=dict.fromkeys(value["data"], "1" * 64)))),
    ("seeded", LEDGER, lambda parts: parts.update({"ledgers/000009.json": parts[LEDGER]})),
    ("seeded", LEDGER, in_json(LEDGER, lambda value: value.update(releases=value["releases"] - 3))),
    # the log, and the state that it begins with
    ("logged", "log", relabel),
    ("logged", "log", unlog),
    ("logged", "log", no_log),
    ("simulated, logged", "log", no_log),
    ("seeded", MODEL, at_gradient(20, replaced(lambda entries, place: nudged(entries[place])))),
    ("seeded", SEGMENT, at_gradient(10, list.pop)),
    ("seeded", SUMMARY, in_log(lambda entries: entries[: gradients_in(entries)[-1]])),
    ("seeded", SEGMENT, at_gradient(10, lambda entries, place: entries.insert(place, entries[place]))),
    ("seeded", SEGMENT, swapped(with_t=False)),
    ("seeded", EVENTS, swapped(with_t=True)),
    ("seeded", SEGMENT, in_log(lambda entries: entries[1:])),  # a hello
    ("seeded", SEGMENT, at_gradient(10, replaced(lambda entries, place: entries[place]._replace(time=-0.5)))),
    ("seeded", SEGMENT, in_log(lambda entries: [*entries[:-1], entries[-1]._replace(time=math.inf)])),
    ("logged", "summary", in_log(stretch)),
    ("seeded", "checkpoints/000001/state.json", lambda parts: parts.pop(STATE)),
    ("seeded", "checkpoints/000001/arrays.safetensors", lambda parts: parts.pop(ARRAYS)),
    ("seeded", STATE, lambda parts: parts.update({STATE: b'{"a":' * 50_000})),
    ("seeded", ARRAYS, lambda parts: parts.update({ARRAYS: b"\0" * 40})),
    ("seeded", ARRAYS, begin_elsewhere),
    ("seeded", STATE, lambda parts: begin_elsewhere(parts, t=2)),
    # the model
    (
        "seeded",
        MODEL,
        remodelled(lambda tensors: [x.reshape(-1).__setitem__(0, 1e-3) for x in tensors.values()]),
    ),
    ("seeded", MODEL, change_a_block),
    ("simulated", "model", filled(np.inf)),
    ("simulated", "model", filled(1, "x")),
    ("simulated, logged", "model", filled(7)),
    # the end
    ("logged", "end", INTERRUPTED),
    ("logged", "end", at(SUMMARY, reason="interrupted")),
    ("unlogged", "end", both(INTERRUPTED, at(SUMMARY, reason="interrupted"))),
    *((base, "end", drop("halted")) for base in ("logged", "simulated")),
    ("seeded", EVENTS, one_more_line(event="halted", reason="finished", time=0.0)),
    # the manifest
    ("logged", "fields", at(MANIFEST, random_stream="quantum")),
    ("seeded", "fields", at(MANIFEST, random_stream="secure")),
    ("logged", "scenario", both(at(MANIFEST, engine="oracle"), at(SUMMARY, engine="oracle"))),
    ("seeded", MANIFEST, at(MANIFEST, "scenario", seed=None)),
    ("seeded", MANIFEST, at(MANIFEST, blessed=True)),
    ("seeded", MANIFEST, in_manifest(lambda value: value["versions"].pop("numpy"))),
    ("seeded", MANIFEST, at(MANIFEST, "versions", numpy=2)),
    ("seeded", MANIFEST, at(MANIFEST, versions="all")),
    ("seeded", MANIFEST, at(MANIFEST, format=2)),
    ("seeded", MANIFEST, at(MANIFEST, run=None)),
    # the summary
    ("logged", "summary", at(SUMMARY, rate="proved optimal")),
    ("logged", "summary", at(SUMMARY, warning="audited by an authority")),
    ("unlogged", "summary", seven_updates),
    ("simulated", "summary", at(SUMMARY, network=[])),
    ("simulated", "summary", at(SUMMARY, "staleness", max=0)),
    ("unlogged", "summary", in_summary(other_seconds)),
    ("seeded", "summary", in_summary(one_more_refusal)),
    ("seeded", "summary", drop("gradient_refused")),
    ("unlogged", "summary", drop("gradient_applied", -1)),
    ("simulated", "summary", at(SUMMARY, parameters=10**6)),
    ("unlogged", "summary", at(SUMMARY, "network", 0, asked_delay_ms=250.0)),
    ("logged", "summary", at(SUMMARY, "network", 0, round_trip_ms="short")),
    ("unlogged", "summary", at(SUMMARY, "network", 0, round_trip_ms=-1.0)),
    ("seeded", "summary", at(SUMMARY, "network", 0, blessed=1)),
    ("seeded", "summary", at(SUMMARY, "network", 0, applied=1)),
    ("seeded", "summary", in_summary(lambda value: value["network"].pop())),
    ("seeded", "summary", in_summary(lambda value: value.update(updates=value["updates"] + 1))),
    ("seeded", "summary", at(SUMMARY, "edges", 0, applied=1)),
    ("seeded", "summary", at(SUMMARY, "stages", 0, learning_rate=1.0)),
    ("seeded", "summary", at(SUMMARY, seed=8)),
    ("seeded", "summary", at(SUMMARY, "refused", norm=3)),
    ("seeded", "summary", at(SUMMARY, diagnostics=True)),
    ("seeded", "summary", at(SUMMARY, "noise", noise_multiplier=[99.0])),
    ("seeded", "summary", at(SUMMARY, blessed=True)),
    ("seeded", "summary", at(SUMMARY, virtual_seconds=1.0)),
    ("seeded", "summary", at(SUMMARY, iterations_per_second=1e6)),
    ("seeded", "summary", at(SUMMARY, "dropped", blessed=1)),
    ("seeded", "summary", at(SUMMARY, "dropped", hello=-1)),
    ("seeded", "evaluations", at(SUMMARY, "evaluations", -1, accuracy=0.999)),
    ("seeded", "evaluations", at(SUMMARY, best_accuracy=0.999)),
    ("seeded", "evaluations", at(SUMMARY, "metrics", 1, better="higher")),
    ("seeded", "evaluations", at(SUMMARY, metrics=[])),
    ("logged", "evaluations", an_evaluation_of_its_own),
    ("simulated", "evaluations", at(SUMMARY, final_accuracy=0.99)),
    ("without events", "evaluations", at(SUMMARY, "evaluations", 0, stage=9)),
    ("without events", "summary", at(SUMMARY, "evaluations", 0, accuracy=1.5)),
    # events.jsonl
    ("simulated", "events", drop("gradient_applied", 9)),
    ("seeded", "events", in_event("gradient_applied", staleness=7)),
    ("seeded", "events", in_event("edge_joined", event="edge_jumped")),
    ("seeded", "events", in_event("edge_joined", time=9e9)),
    ("seeded", "events", one_more_line(event="blessed")),
    ("seeded", "events", one_more_line(event="gradient_refused", reason="norm")),
    ("seeded", "events", one_more_line(event="resumed", t=3, torn_bytes=0, time=1e6)),
    *(("logged", "events", one_more_line(event="resumed", torn_bytes=torn)) for torn in (-1, 1 << 40)),
    ("logged", "events", in_event("evaluated", stage=9)),
    ("logged", "events", in_event("evaluated", accuracy=1.5)),
    ("unlogged", "events", in_event("evaluated", accuracy="all")),
    ("logged", "events", events(lambda lines: [A_REFUSAL, *lines])),  # of an edge that never joined
    ("seeded", "events", in_event("gradient_refused", reason="disliked")),
    ("seeded", "events", in_event("gradient_refused", t=10**6)),
)
NOT_ALLOWED = (relabel, unlog)  # without --allow-unlogged


@pytest.mark.parametrize("number", range(len(FORGERIES)))
def test_a_forgery_is_not_verified_and_what_shows_it_is_named(
    bundles: Callable[[str], Path], number: int
) -> None:
    base, failing, change = FORGERIES[number]
    bundle = bundles(base)
    parts = parts_of(bundle)
    change(parts)
    try:
        reasons = why_not_private(read(parts[MANIFEST]), read(parts[SUMMARY]))
        claims = {"private": not reasons, "not_private": reasons}
        claims["scenario_sha256"] = read(parts[MANIFEST])["scenario_sha256"]
    except (AttributeError, ValueError):
        claims = {}

    def forge(of_bundle: Parts) -> None:
        of_bundle.clear()
        of_bundle.update({name: content for name, content in parts.items() if name != "manifest.json"})

    checks = verify(rewritten(bundle, forge, **claims), (), unlogged=change not in NOT_ALLOWED)
    assert not is_verified(checks)
    assert {"zip", "hashes"} <= {one.name for one in checks if one.status is Status.PASSED}
    wrong = [one for one in checks if one.status in (Status.FAILED, Status.NOT_CHECKED)]
    assert failing in {one.name for one in wrong} | {one.part for one in wrong}, wrong


@pytest.mark.parametrize("base", BASES)
def test_the_run_itself_is_verified(bundles: Callable[[str], Path], base: str) -> None:
    assert is_verified(verify(bundles(base), (), unlogged=base in ("unlogged", "simulated")))


def test_releases_that_no_record_of_the_run_shows_are_found_by_its_ledgers_alone(
    bundles: Callable[[str], Path],
) -> None:
    """They may be of a run that was cut off, or of a later one of the name."""
    bundle = bundles("logged")
    wrong = [one for one in verify(rewritten(bundle, MORE_RELEASES), ()) if one.status is Status.FAILED]
    assert [(one.name, one.part) for one in wrong] == [("ledgers", LEDGER)]
    assert "of a later run of the name" in wrong[0].detail
    assert is_verified(verify(rewritten(bundle, both(MORE_RELEASES, no_ledgers)), ()))
