"""Forgeries by someone who makes hashes, checksums and copies right again: none is verified, and a check names each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from common.quantities import EdgeId
from common.records.directory import ordered
from common.records.gradient_log import Entry, Kind
from common.scenario.scenario import parse_scenario
from mapa.recording import record_simulation
from mapa.releases import privacy_of, releases_of
from mapa.simulation.simulator import World
from mapa.verification.bundle import make_bundle
from mapa.verification.check import Status, is_verified
from mapa.verification.checks_privacy import why_not_private
from mapa.verification.replay import LogReplay, start_of
from mapa.verification.untrusted_files import RunFiles
from mapa.verification.verify import verify
from tests.core_support import small_dataset, small_scenario
from tests.verification_support import (
    EVENTS,
    MANIFEST,
    MODEL,
    PRIVATE,
    SEGMENT,
    SUMMARY,
    Parts,
    entries_of,
    gradients_in,
    in_ledger,
    in_log,
    in_manifest,
    in_summary,
    logged_run,
    parts_of,
    rewritten,
    with_entries,
    without,
)

UNLOGGED = {"keep_gradients": False}
SHUFFLED = {**PRIVATE, "data": {"sampler": "shuffled"}}


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


def read(parts: Parts, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(parts[name])
    return value


def write(parts: Parts, name: str, value: dict[str, Any]) -> None:
    parts[name] = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


Forge = Callable[[Parts], None]


def events(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Forge:
    def forge(parts: Parts) -> None:
        lines = change([json.loads(line) for line in parts[EVENTS].splitlines()])
        parts[EVENTS] = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)

    return forge


def both(*forgeries: Forge) -> Forge:
    def forge(parts: Parts) -> None:
        for one in forgeries:
            one(parts)

    return forge


def rescenario(parts: Parts, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the scenario, and every hash and copy of it."""
    value, stated = read(parts, MANIFEST), read(parts, SUMMARY)
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
    value, stated = read(parts, MANIFEST), read(parts, SUMMARY)
    metadata = {"scenario_sha256": value["scenario_sha256"], "updates": str(stated["updates"])}
    parts[MODEL] = ordered(save(tensors, metadata=metadata))


def sevens(tensors: dict[str, Any]) -> None:
    for tensor in tensors.values():
        tensor[...] = 7


def restate(parts: Parts, releases: Callable[[list[int]], list[int]]) -> None:
    """State other releases, with the ε that they have."""
    value, stated = read(parts, MANIFEST), read(parts, SUMMARY)
    scenario = parse_scenario(value["scenario"])
    stated["releases"] = releases(stated["releases"])
    rows = [
        (row["edge"], row["edge_id"], scenario.law(row["edge"]), value["shard_sizes"][row["edge"]], count)
        for row, count in zip(stated["edges"], stated["releases"], strict=True)
    ]
    stated["privacy"] = privacy_of(scenario, rows)
    write(parts, SUMMARY, stated)


def scale(value: Any, factor: float) -> Any:
    """Multiply every ε of a statement, words included."""
    if isinstance(value, dict):
        found = {key: scale(one, factor) for key, one in value.items()}
        for key in ("epsilon", "epsilon_replace_one"):
            if isinstance(found.get(key), float):
                found[key] *= factor
        if isinstance(found.get("epsilon_by_method"), dict):
            found["epsilon_by_method"] = {
                key: one * factor for key, one in found["epsilon_by_method"].items()
            }
        return found
    return [scale(one, factor) for one in value] if isinstance(value, list) else value


no_log = without("run/log/", "run/checkpoints/")
no_ledgers = without("ledgers/")


def relabel(parts: Parts) -> None:
    """Call a networked run simulated: no log, no ledgers, edges renamed, keys of its engine, and every weight 7."""
    no_log(parts)
    no_ledgers(parts)
    value, stated = read(parts, MANIFEST), read(parts, SUMMARY)
    ids = {row["edge_id"]: f"edge-{row['edge']}" for row in stated["edges"]}
    for name in (SUMMARY, EVENTS):
        for old, new in ids.items():
            parts[name] = parts[name].replace(old.encode(), new.encode())
    stated = read(parts, SUMMARY)
    del stated["network"], stated["dropped"]
    stated |= {"engine": "events", "virtual_seconds": None}
    value["engine"] = "events"
    write(parts, SUMMARY, stated)
    write(parts, MANIFEST, value)
    remodel(parts, sevens)


def unlog(parts: Parts) -> None:
    """Say that the run kept no gradients, and put another model in place."""
    no_log(parts)
    rescenario(parts, lambda scenario: scenario["records"].update(keep_gradients=False))
    remodel(parts, sevens)


def cut_in_half(parts: Parts) -> None:
    """Let the run end at half its updates, by an interruption that log, events, summary, ε and model tell alike."""
    value, stated = read(parts, MANIFEST), read(parts, SUMMARY)
    half, entries = stated["updates"] // 2, entries_of(parts[SEGMENT])
    end = next(place for place in gradients_in(entries) if entries[place].t == half + 1)
    moment = entries[end].time
    kept = [*entries[:end], Entry(Kind.HALT, half + 1, moment, EdgeId(""), b"interrupted")]
    parts[SEGMENT] = with_entries(parts[SEGMENT], kept)
    lines = [json.loads(line) for line in parts[EVENTS].splitlines()]
    at = next(
        place
        for place, line in enumerate(lines)
        if line["event"] == "gradient_applied" and line["t"] == half + 1
    )
    last = {"event": "halted", "t": half, "reason": "interrupted", "time": round(moment, 6)}
    lines = [line for line in lines[:at] if line["event"] != "evaluated"] + [last]
    parts[EVENTS] = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    run = {
        name.removeprefix("run/"): memoryview(one) for name, one in parts.items() if name.startswith("run/")
    }
    files, scenario = RunFiles(run), parse_scenario(value["scenario"])
    start = start_of(files, scenario)
    replay = LogReplay.of(files, start)
    accounts = sorted(replay.server.edges.values(), key=lambda account: account.index)
    assert start.model is not None
    seconds = replay.times[1] - replay.times[0]
    for key in [key for key in stated if key.startswith(("final_", "best_"))]:
        del stated[key]
    stated |= {
        **replay.tally.summary(start.model.metrics),
        "reason": "interrupted",
        "seconds": seconds,
        "iterations_per_second": half / seconds if seconds else None,
        "releases": [releases_of(one, replay.restarts, replay.tally, begun=True)[1] for one in accounts],
    }
    for row, account in zip(stated["network"], accounts, strict=True):
        mean = next(edge["staleness_mean"] for edge in stated["edges"] if edge["edge"] == account.index)
        row |= {"applied": account.applied, "staleness_mean": mean}
    write(parts, SUMMARY, stated)
    restate(parts, lambda counts: counts)
    result, layout = replay.server.result, start.model.layout
    remodel(
        parts,
        lambda tensors: tensors.update(
            {"x": result, **{one.name: result[one.slice].reshape(one.shape).copy() for one in layout}}
        ),
    )


def stretch(entries: list[Entry]) -> list[Entry]:
    """Let a second pass between two records of the log."""
    return [entry._replace(time=entry.time + place) for place, entry in enumerate(entries)]


def weaker_noise(parts: Parts) -> None:
    """State a noise multiplier that the scenario and its hash then have as well: the ledgers do not."""
    rescenario(parts, lambda scenario: scenario["privacy"].update(noise_multiplier=[40.0]))
    restate(parts, lambda counts: counts)


def weaker_noise_in_events(parts: Parts) -> None:
    weaker_noise(parts)
    parts[EVENTS] = parts[EVENTS].replace(b'"noise_multiplier": 4.0', b'"noise_multiplier": 40.0')


def an_evaluation_of_its_own(parts: Parts) -> None:
    """Tell of a model that nothing asked to be evaluated."""

    def told(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        place = max(place for place, line in enumerate(lines) if line["event"] == "evaluated")
        return [*lines[:place], lines[place] | {"t": lines[place]["t"] - 1}, *lines[place:]]

    def summed(value: dict[str, Any]) -> None:
        row = value["evaluations"][-1]
        value["evaluations"].insert(-1, row | {"updates": row["updates"] - 1})

    both(events(told), in_summary(summed))(parts)


def larger_shards(parts: Parts) -> None:
    in_manifest(lambda value: value.update(shard_sizes=[10 * size for size in value["shard_sizes"]]))(parts)
    restate(parts, lambda counts: counts)


def other_ends(**changes: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda lines: [line | changes if line["event"] == "halted" else line for line in lines]


def drop(event: str, number: int = 0) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        place = [place for place, line in enumerate(lines) if line["event"] == event][number]
        return lines[:place] + lines[place + 1 :]

    return change


def one_more_refusal(parts: Parts) -> None:
    """Count a refusal that has no line."""
    stated = read(parts, SUMMARY)
    reason = next(iter(stated["refused"]))
    stated["refused"][reason] += 1
    write(parts, SUMMARY, stated)


def seven_updates(parts: Parts) -> None:
    """Let the summary say that seven updates more were applied, wherever it counts them."""

    def change(value: dict[str, Any]) -> None:
        value["updates"] += 7
        value["edges"][0]["applied"] += 7
        value["network"][0]["applied"] += 7
        value["iterations_per_second"] = value["updates"] / value["seconds"] if value["seconds"] else None

    in_summary(change)(parts)
    remodel(parts, lambda _: None)


def stated_epsilon(factor: float) -> Forge:
    return in_summary(lambda value: value.update(privacy=scale(value["privacy"], factor)))


def in_privacy(**values: Any) -> Forge:
    return in_summary(lambda value: value["privacy"].update(values))


def summary(**values: Any) -> Forge:
    return in_summary(lambda value: value.update(values))


def restated(releases: Callable[[list[int]], list[int]]) -> Forge:
    return lambda parts: restate(parts, releases)


def remodelled(change: Callable[[dict[str, Any]], object]) -> Forge:
    return lambda parts: remodel(parts, change)


def one_each(counts: list[int]) -> list[int]:
    return [1] * len(counts)


def one_less(counts: list[int]) -> list[int]:
    return [counts[0] - 1, *counts[1:]]


def in_event(name: str, **changes: Any) -> Forge:
    """Change the first line of an event."""

    def change(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        next(line for line in lines if line["event"] == name).update(changes)
        return lines

    return events(change)


def in_rows(table: str, **changes: Any) -> Forge:
    return in_summary(lambda value: value[table][0].update(changes))


def charged_once(value: dict[str, Any]) -> None:
    for row in value["privacy"]["edges"]:
        row["charges"] = 1


def own_seconds(value: dict[str, Any]) -> None:
    value.update(seconds=5.0, iterations_per_second=value["updates"] / 5.0)


def filled(value: float, *besides: str) -> Forge:
    return remodelled(lambda tensors: [x.fill(value) for name, x in tensors.items() if name not in besides])


INTERRUPTED = events(other_ends(reason="interrupted"))
ZERO_WORDS = "Each record of an edge's shard is protected with (ε = 0, δ = 0)-DP."
ZERO = in_privacy(epsilon=0.0, delta=0.0, words=[ZERO_WORDS])
NOTHING = summary(privacy={"words": ["Nothing was released."], "edges": []})
A_REFUSAL = {"event": "gradient_refused", "edge_id": "edge-x", "sequence": 1, "t": 1, "reason": "duplicate"}
# the run that is changed, how, and the check that finds it
FORGERIES: dict[str, tuple[str, Forge, str]] = {
    # ε where there is no log
    "ε/100, simulated": ("simulated", stated_epsilon(0.01), "ε"),
    "ε/100, unlogged": ("unlogged", stated_epsilon(0.01), "ε"),
    "ε/100, logged": ("logged", stated_epsilon(0.01), "ε"),
    "ε = 0, δ = 0, simulated": ("simulated", ZERO, "ε"),
    "ε = 0, δ = 0, unlogged": ("unlogged", ZERO, "ε"),
    "releases all 1 beside the statement": ("simulated", summary(releases=[1, 1, 1]), "releases"),
    "releases all 1, and the statement's": ("simulated", restated(one_each), "releases"),
    "releases all 1 in an unlogged run": ("unlogged", restated(one_each), "releases"),
    "networked run relabelled as simulated, weights 7": ("logged", relabel, "log"),
    "log dropped with the scenario's word, weights 7": ("logged", unlog, "log"),
    "log dropped without it": ("logged", no_log, "log"),
    # ledgers that contradict the statement
    "shuffled: a charge for each release in a ledger": ("shuffled", in_ledger(charges=10), "ledgers"),
    "shuffled: one charge in a ledger": ("shuffled", in_ledger(charges=1), "ledgers"),
    "shuffled: one charge in the statement": ("shuffled", in_summary(charged_once), "ε"),
    # how it ended, and what else is told of it
    "halted interrupted in events": ("logged", INTERRUPTED, "end"),
    "halted interrupted in the summary": ("logged", summary(reason="interrupted"), "end"),
    "halted interrupted in both": ("unlogged", both(INTERRUPTED, summary(reason="interrupted")), "end"),
    "no halted line": ("logged", events(drop("halted")), "end"),
    "no halted line, simulated": ("simulated", events(drop("halted")), "end"),
    "any random_stream": ("logged", in_manifest(lambda v: v.update(random_stream="quantum")), "fields"),
    "secure stream, seeded": ("seeded", in_manifest(lambda v: v.update(random_stream="secure")), "fields"),
    "any text in rate": ("logged", summary(rate="proved optimal"), "summary"),
    "any warning": ("logged", summary(warning="audited by an authority"), "summary"),
    "cut in half, ledgers keep the counts": ("logged", cut_in_half, "ledgers"),
    "10⁹ releases in a ledger": ("logged", in_ledger(releases=10**9, charges=10**9), "ledgers"),
    "10⁹ releases, unlogged": ("unlogged", in_ledger(releases=10**9, charges=10**9), "ledgers"),
    "a refusal more in the summary": ("seeded", one_more_refusal, "summary"),
    "a refusal line dropped": ("seeded", events(drop("gradient_refused")), "summary"),
    # others
    "nothing was released": ("simulated", NOTHING, "ε"),
    "no statement at all": ("simulated", in_summary(lambda v: v.pop("privacy")), "ε"),
    "one release under way left out": ("logged", restated(one_less), "releases"),
    "one release under way left out, simulated": ("simulated", restated(one_less), "releases"),
    "another noise than the ledgers'": ("unlogged", weaker_noise_in_events, "ledgers"),
    "another noise than the edges said": ("simulated", weaker_noise, "ε"),
    "shards ten times as large": ("logged", larger_shards, "ledgers"),
    "an update dropped, unlogged": ("unlogged", events(drop("gradient_applied", -1)), "summary"),
    "an update in the middle dropped": ("simulated", events(drop("gradient_applied", 9)), "events"),
    "seven updates more in the summary, unlogged": ("unlogged", seven_updates, "summary"),
    "keys of a cloud in a simulation": ("simulated", summary(network=[]), "summary"),
    "staleness smaller": ("simulated", in_summary(lambda v: v["staleness"].update(max=0)), "summary"),
    "an evaluation of its own": ("logged", an_evaluation_of_its_own, "evaluations"),
    "final accuracy of its own": ("simulated", summary(final_accuracy=0.99), "evaluations"),
    "seconds of its own": ("unlogged", in_summary(own_seconds), "summary"),
    "another link than the scenario's": ("unlogged", in_rows("network", asked_delay_ms=250.0), "summary"),
    "more parameters than the model": ("simulated", summary(parameters=10**6), "summary"),
    "infinite weights, unlogged": ("simulated", filled(np.inf), "model"),
    "blocks that are not x, unlogged": ("simulated", filled(1, "x"), "model"),
    "weights 7 beside a simulation's log": ("simulated, logged", filled(7), "model"),
    "a simulation's log dropped": ("simulated, logged", no_log, "log"),
    "an engine that is none": (
        "logged",
        both(in_manifest(lambda v: v.update(engine="oracle")), summary(engine="oracle")),
        "scenario",
    ),
    "another clock in the log": ("logged", in_log(stretch), "summary"),
    # values of lines that are written as they come
    "an evaluation of another stage": ("logged", in_event("evaluated", stage=9), "events"),
    "an accuracy beyond 1": ("logged", in_event("evaluated", accuracy=1.5), "events"),
    "an accuracy that is a text": ("unlogged", in_event("evaluated", accuracy="all"), "events"),
    "a refusal of who never joined": ("logged", events(lambda lines: [A_REFUSAL, *lines]), "events"),
    "a refusal of no kind": ("seeded", in_event("gradient_refused", reason="disliked"), "events"),
    "a refusal of a later update": ("seeded", in_event("gradient_refused", t=10**6), "events"),
    "a round trip that is a text": ("logged", in_rows("network", round_trip_ms="short"), "summary"),
    "a round trip below 0": ("unlogged", in_rows("network", round_trip_ms=-1.0), "summary"),
    "torn bytes of many records": (
        "logged",
        events(lambda lines: [*lines, lines[-1] | {"event": "resumed", "torn_bytes": 1 << 40}]),
        "events",
    ),
}
NOT_ALLOWED = (relabel, unlog)  # without --allow-unlogged


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_not_verified_and_the_check_that_finds_it_is_named(
    bundles: Callable[[str], Path], name: str
) -> None:
    base, change, check = FORGERIES[name]
    bundle = bundles(base)
    assert is_verified(verify(bundle, (), unlogged=True)), "the run itself is honest"
    parts = parts_of(bundle)
    change(parts)
    reasons = why_not_private(read(parts, MANIFEST), read(parts, SUMMARY))

    def forge(of_bundle: Parts) -> None:
        of_bundle.clear()
        of_bundle.update({name: content for name, content in parts.items() if name != "manifest.json"})

    digest = read(parts, MANIFEST)["scenario_sha256"]
    claims = {"private": not reasons, "not_private": reasons, "scenario_sha256": digest}
    checks = verify(rewritten(bundle, forge, **claims), (), unlogged=change not in NOT_ALLOWED)
    assert not is_verified(checks)
    wrong = {one.name for one in checks if one.status in (Status.FAILED, Status.NOT_CHECKED)}
    assert check in wrong, [one for one in checks if one.name in wrong]


def test_a_run_cut_in_half_is_found_by_its_ledgers_alone(bundles: Callable[[str], Path]) -> None:
    """All else is consistent: without ledgers it is a run that was interrupted, and no record can show another."""
    checks = verify(rewritten(bundles("logged"), cut_in_half), ())
    assert {one.name for one in checks if one.status is Status.FAILED} == {"ledgers"}
    assert is_verified(verify(rewritten(bundles("logged"), both(cut_in_half, no_ledgers)), ()))
