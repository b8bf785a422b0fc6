"""Releases against the edges' ledgers, and ε against an accounting done again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloud.terms import EdgeAccount
from common.accounting.releases import ReleaseKind
from common.datasets.source import LOCAL
from common.messages import GradientApplied
from common.noise.law import NoiseLaw
from common.quantities import EdgeId
from common.scenario.parts import least_records
from common.scenario.scenario import Scenario
from edge.preparation import cut_of
from mapa.recording import EARLIER, ENGINES, Starts, privacy_of, releases_of
from mapa.verification.check import Check, claimed, failed, not_checked, passed
from mapa.verification.ledgers import PART, LedgerStatement, is_name_of
from mapa.verification.of_events import Told
from mapa.verification.rerun import Rerun
from mapa.verification.run_files import MANIFEST, SUMMARY, RunFiles, UnreadableError
from mapa.verification.start import NotCheckedError

_GROUPS = "GROUPS"  # in the place of a fingerprint of groups, which needs the data set
TOLERANCE = 1e-6  # relative, of ε: numerical libraries of other versions may round otherwise


_Row = tuple[int, str, NoiseLaw | None, int, int, int]  # k, id, law, last used up, applied, last applied


@dataclass(frozen=True, slots=True)
class Released:
    """An edge, and what something else than the statement says of its releases."""

    index: int  # k
    edge_id: str
    law: NoiseLaw | None
    applied: int
    last: int  # sequence that was applied
    least: int  # messages
    most: int
    sure: bool = True  # False: it may have released more, which only a log or its ledger can show


def released_by_log(
    rerun: Rerun, scenario: Scenario, engine: str, summary: Mapping[str, Any]
) -> list[Released]:
    """Return what the log proves of every edge: exactly how many, but for a budget that ends in the last one."""
    if engine in ENGINES:
        last = next((fact.edge for fact in reversed(rerun.facts) if isinstance(fact, GradientApplied)), None)
        rows = [
            (one.index, str(one.edge_id), one.law, one.last_sequence, one.applied, one.last_sequence)
            for one in _accounts(rerun)
        ]
        return _simulated(rows, scenario, engine, last, summary)
    found, begun = [], rerun.server.schedule is not None
    budget = engine == "processes" and scenario.private and scenario.privacy.total_epsilon is not None
    for account in _accounts(rerun):
        known, most = releases_of(account, rerun.lives, rerun.tally, begun=begun)
        least = known if budget else most
        last = rerun.tally.edges[account.index].last_sequence
        found.append(
            Released(account.index, account.edge_id, account.law, account.applied, last, least, most)
        )
    return found


def released_by_records(
    files: RunFiles, scenario: Scenario, engine: str, told: Told | None, summary: Mapping[str, Any]
) -> list[Released]:
    """Return what events.jsonl says of every edge, or else the summary's own rows, where there is no log."""
    if told is not None:
        rows = [
            (
                *(k, row.edge_id, told.law(row.edge_id, k), told.sequences.get(row.edge_id, 0)),
                *(row.applied, row.last_sequence),
            )
            for k, row in sorted(told.tally.edges.items())
        ]
        last = told.last_edge
    else:
        rows = [
            (
                *(row["edge"], row["edge_id"], scenario.law(row["edge"]), row["last_sequence"]),
                *(row["applied"], row["last_sequence"]),
            )
            for row in summary["edges"]
        ]
        last = None
    if engine in ENGINES:
        return _simulated(rows, scenario, engine, last, summary)
    ledgers = {one.edge_id: one.releases for one in files.ledgers}
    found = []
    for k, edge_id, law, used, applied, last_sequence in rows:
        most = max(ledgers.get(edge_id, 0), used) + 1
        found.append(Released(k, edge_id, law, applied, last_sequence, used, most, edge_id in ledgers))
    return found


def _simulated(
    rows: Sequence[_Row],
    scenario: Scenario,
    engine: str,
    last: int | None,
    summary: Mapping[str, Any],
) -> list[Released]:
    """Return what a simulation's edges released: those applied, and one that was under way at the end."""
    reason, gone = summary.get("reason"), {row["edge"]: row["gone"] for row in summary["edges"]}
    found = []
    for k, edge_id, law, sequence, applied, _ in rows:
        if engine == "synchronous":
            more = reason == "time-limit"
        else:
            told_to_end = k == last and reason in ("finished", "diverged")
            more = reason != "no-gradients" and not gone.get(k) and not told_to_end
        away = any(profile.availability is not None for profile in scenario.profiles)
        unknown = away or last is None  # whether it was there at the end, or made the last of all
        least, most = sequence + (more and not unknown), sequence + (more or unknown)
        found.append(Released(k, edge_id, law, applied, sequence, least, most))
    return found


def against_ledgers(
    files: RunFiles, scenario: Scenario, released: Sequence[Released], rerun: Rerun | None
) -> Iterator[Check]:
    """Check that no ledger says more, or less, than the run states; edges whose ledgers are not here are named."""
    ledgers = {one.edge_id: one for one in files.ledgers}
    manifest, summary = files.json(MANIFEST), files.json(SUMMARY)
    sizes, own = shard_sizes(manifest, scenario)
    stated = summary.get("releases")
    wrong = 0
    for one in files.ledgers:
        if one is not ledgers[one.edge_id]:
            wrong += 1
            yield failed("ledgers", one.part, f"{one.edge_id}: another part is of this edge, too")
        if not is_name_of(one.run, str(manifest.get("run"))):
            wrong += 1
            yield failed("ledgers", one.part, f"{one.edge_id}: of run {one.run!r:.80}")
    for edge_id in ledgers.keys() - {one.edge_id for one in released}:
        wrong += 1
        yield failed("ledgers", ledgers[edge_id].part, f"{edge_id}: no such edge in the run")
    applied = {one.edge_id: one.applied for one in released}
    for part, edge_id in files.other_ledgers.items():
        if applied.get(edge_id, 0) or (any(applied.values()) and not ledgers):
            wrong += 1
            yield failed("ledgers", part, f"{edge_id}: no account of this run, which has gradients of it")
    rows = stated if isinstance(stated, list) and len(stated) == len(released) else [None] * len(released)
    for edge, count in zip(released, rows, strict=True):
        ledger = ledgers.get(edge.edge_id)
        if ledger is None:
            continue
        kind = ReleaseKind(scenario.mechanism(edge.law), sizes[edge.index])
        for words in (
            *_miscounted(ledger, edge, count, rerun),
            *_other_records(ledger, manifest, scenario),
            *_mischarged(ledger, kind, rerun, summary, own=own),
        ):
            wrong += 1
            yield failed("ledgers", ledger.part, f"{edge.edge_id}: {words}")
        if not own and ledger.shard != edge.index:
            wrong += 1
            yield failed(
                "ledgers", ledger.part, f"{edge.edge_id}: of shard {ledger.shard}; by the run {edge.index}"
            )
        if not _is_of(ledger.kind, json.loads(json.dumps(kind.fields())), own=own):
            wrong += 1
            yield failed(
                "ledgers", ledger.part, f"{edge.edge_id}: released in another way than the run states"
            )
    here = sum(one.edge_id in ledgers for one in released)
    if here and not wrong:
        yield passed("ledgers", PART, f"stated ≥ released ≥ applied on {here} edges, charged alike")
    if here < len(released) and manifest.get("engine") not in ENGINES:
        yield claimed(
            "ledgers", PART, f"nothing is known of {len(released) - here} edges' ledgers: they are not here"
        )


def _miscounted(
    ledger: LedgerStatement, edge: Released, stated: object, rerun: Rerun | None
) -> Iterator[str]:
    """Say where a ledger has not applied ≤ released ≤ stated."""
    known = edge.last  # what was refused for good may be of anybody who can write to the edge's topic
    if rerun is not None:
        known = max(known, rerun.lives.known(EdgeId(edge.edge_id)))
    if not ledger.releases >= max(known, edge.applied):
        yield f"released {ledger.releases}; the run applied {edge.applied}, up to its gradient {known}"
    if type(stated) is not int or ledger.releases > stated:
        yield (
            f"released {ledger.releases}, and the run's ε counts {stated!r:.40}: of a later run of the name, or charged"
            " by its operator; a run is bundled before the next of its name begins"
        )


def _mischarged(
    ledger: LedgerStatement, kind: ReleaseKind, rerun: Rerun | None, summary: Mapping[str, Any], *, own: bool
) -> Iterator[str]:
    """Say where a ledger's charges are not those of its releases; with the shuffled sampler each restart adds some."""
    size = ledger.kind.get("shard_size")
    if own and type(size) is int and size >= kind.shard_size:
        kind = replace(kind, shard_size=size)  # its epochs are longer than the run's bound knows
    fewest = most = kind.charges(ledger.releases)
    if kind.mechanism.sampler.by_epoch:
        if rerun is not None:
            most = rerun.lives.charges(EdgeId(ledger.edge_id), kind, ledger.releases)
        else:
            most = max(fewest, _stated_charges(summary).get(ledger.edge_id, 0))
    if not fewest <= ledger.charges <= most:
        yield f"{ledger.charges} charges for {ledger.releases} releases; by the run {fewest} to {most}"


def _stated_charges(summary: Mapping[str, Any]) -> dict[str, int]:
    """Return the charges of each edge that the statement has."""
    edges = _table(summary, "privacy").get("edges")
    rows = [row for row in edges if isinstance(row, dict)] if isinstance(edges, list) else []
    return {str(row.get("edge_id")): row["charges"] for row in rows if type(row.get("charges")) is int}


def _other_records(ledger: LedgerStatement, manifest: Mapping[str, Any], scenario: Scenario) -> Iterator[str]:
    """Say in what a ledger is of other records than the run's, or of a run that was seeded otherwise."""
    stated: object
    if least_records(scenario) is not None:
        stated, cut = "its edge's own", LOCAL
        same = ledger.dataset.startswith(f"{LOCAL}:")
    else:
        stated, cut = (
            _table(manifest, "data").get(scenario.data.set),
            cut_of(scenario, scenario.workers, _GROUPS),
        )
        same = ledger.dataset == stated
    if not same:
        yield f"on data set {ledger.dataset!r:.80}; the manifest has {stated!r:.80}"
    if not re.fullmatch(re.escape(cut).replace(_GROUPS, "[0-9a-f]{16}"), ledger.partition):
        yield f"on a shard of {ledger.partition!r:.80}; by the scenario {cut!r:.80}"
    seeded = scenario.seed is not None
    if ledger.reproducible is not seeded:
        yield f"reproducible = {ledger.reproducible}; by the scenario {seeded}"


class _StatedStarts:
    """The starts of edges where no log has their hellos: as charged by the statement, which their ledgers confirm."""

    def __init__(self, charges: Mapping[str, int], words: object) -> None:
        self._charges = charges
        self._earlier = isinstance(words, list) and EARLIER in words

    def earlier(self, _edge_id: EdgeId) -> int:
        return int(self._earlier)

    def charges(self, edge_id: EdgeId, kind: ReleaseKind, messages: int) -> int:
        return max(
            kind.charges(messages), min(self._charges.get(edge_id, 0), messages * kind.mechanism.steps)
        )


def statement_again(
    files: RunFiles, scenario: Scenario, released: Sequence[Released], rerun: Rerun | None
) -> Iterator[Check]:
    """Account the releases again, from the scenario and what else shows their number, and compare the statement."""
    summary, manifest = files.json(SUMMARY), files.json(MANIFEST)
    stated, simulated = summary.get("privacy"), manifest.get("engine") in ENGINES
    if not isinstance(stated, dict):
        raise NotCheckedError("the run states no guarantee: its accounting was interrupted")
    counts = summary.get("releases")
    sizes, own = shard_sizes(manifest, scenario)
    if not isinstance(counts, list) or len(counts) != len(released):
        yield failed(
            "releases", SUMMARY, f"releases = {counts!r:.100}: must be one for each of {len(released)} edges"
        )
        return
    if simulated and (odd := [edge.edge_id for edge in released if edge.law != scenario.law(edge.index)]):
        words = (
            f"{', '.join(odd)[:200]}: noised otherwise than the scenario says, which simulated edges cannot"
        )
        yield failed("ε", SUMMARY, words)
        return
    unknown = []
    for edge, count in zip(released, counts, strict=True):
        if type(count) is not int or count < edge.least or (count > edge.most and edge.sure):
            words = f"{edge.edge_id}: {count!r:.40} releases; by the records {edge.least} to {edge.most}"
            yield failed("releases", SUMMARY, words)
            return
        if count > edge.most:
            unknown.append(edge.edge_id)
    if unknown:
        yield not_checked(
            "releases", SUMMARY, f"of {', '.join(unknown)[:200]}: only a log or their ledgers can show them"
        )
    else:
        source = "the log proves" if rerun is not None else "the records show"
        yield passed(
            "releases", SUMMARY, f"as many as {source}, with what may have been under way at the end"
        )
    starts: Starts | None = None if simulated else rerun.lives if rerun is not None else None
    if not simulated and rerun is None and scenario.sampler.by_epoch:
        starts = _StatedStarts(_stated_charges(summary), stated.get("words"))
        here = {one.edge_id for one in files.ledgers}
        if missing := [one.edge_id for one in released if one.edge_id not in here]:
            yield not_checked(
                "charges",
                SUMMARY,
                f"of {', '.join(missing)[:200]}: each restart begins an epoch, and only a log or --ledger shows it",
            )
    again = privacy_of(
        scenario,
        [
            (edge.index, edge.edge_id, edge.law, sizes[edge.index], count)
            for edge, count in zip(released, counts, strict=True)
        ],
        starts,
        least_records(scenario) if own else None,
    )
    place = unlike(stated, json.loads(json.dumps(again)))
    if place:
        yield failed("ε", SUMMARY, f"privacy{place}")
    else:
        figure = again.get("epsilon")
        words = "ε = ∞" if figure is None else f"ε = {figure:.6g} at δ = {again['delta']:g}"
        yield passed("ε", SUMMARY, f"{words}: accounted again, to {TOLERANCE:g}")
        total = scenario.privacy.total_epsilon
        if total is not None and (figure is None or figure > total * (1 + TOLERANCE)):
            yield claimed(
                "budget",
                MANIFEST,
                f"privacy.total_epsilon = {total:g}: {words} is above it; a budget is kept by each edge's own ledger",
            )
    if not simulated and rerun is None and not all(edge.sure for edge in released):
        yield claimed(
            "releases", SUMMARY, "whether a last gradient was under way: neither log nor ledger shows it"
        )
    if not own:
        yield claimed(
            "shard sizes",
            MANIFEST,
            "n_k: they follow from the data set, which is not here; `mapa replay` has it",
        )


def why_not_private(manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Return every reason for which this run's records are not differentially private; none: they are.

    Closed by default: a run that states no ε is taken for one that is not private. No code is imported for it.
    """
    found = []
    scenario, privacy = _table(manifest, "scenario"), _table(summary, "privacy")
    if scenario.get("seed") is not None:
        found.append("seeded: whoever knows the seed can take the noise off")
    if _table(scenario, "records").get("diagnostics") is not False:
        found.append("diagnostics: the records hold gradient norms before noise")
    if privacy.get("words") == ["Nothing was released."]:
        return found
    edges = privacy.get("edges")
    figures = (
        [privacy, *(row for row in edges if isinstance(row, dict))] if isinstance(edges, list) else [privacy]
    )
    bare = [figure for figure in figures if not isinstance(figure.get("epsilon"), int | float)]
    if bare:
        why = next((str(one["reason"]) for one in bare if one.get("reason")), None)
        found.append("no ε is stated" if why is None else f"ε = ∞: {why}")
    return found


def _table(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def shard_sizes(manifest: Mapping[str, Any], scenario: Scenario) -> tuple[list[int], bool]:
    """Return n_k as the manifest states them, or the least that takes part where only the edges know (True)."""
    sizes, least = manifest.get("shard_sizes"), least_records(scenario)
    if least is not None and manifest.get("engine") not in ENGINES:
        if sizes != []:
            raise UnreadableError(
                MANIFEST, f"shard_sizes = {sizes!r:.80}: a cloud does not know its edges' numbers"
            )
        return [least] * scenario.workers, True
    if (
        not isinstance(sizes, list)
        or len(sizes) != scenario.workers
        or any(type(size) is not int or size < 1 for size in sizes)
    ):
        raise UnreadableError(MANIFEST, f"shard_sizes: must be {scenario.workers} counts")
    return sizes, False


def _is_of(kept: Mapping[str, Any], stated: dict[str, Any], *, own: bool) -> bool:
    """Tell whether a ledger's kind of release is what the run states; records of an edge's own may be more."""
    size = kept.get("shard_size")
    if own and type(size) is int and size >= stated["shard_size"]:
        stated = {**stated, "shard_size": size}
    return kept == stated


def unlike(stated: Any, again: Any, place: str = "") -> str:
    """Say where two statements differ first; '' where they are alike, numbers to TOLERANCE."""
    if isinstance(stated, dict) and isinstance(again, dict):
        if stated.keys() != again.keys():
            return f"{place}: keys {sorted(stated.keys() ^ again.keys())!r:.100} are missing or extra"
        pairs = [(stated[key], again[key], f"{place}.{key}") for key in again]
    elif isinstance(stated, list) and isinstance(again, list):
        if len(stated) != len(again):
            return f"{place}: {len(stated)} entries, accounted again {len(again)}"
        pairs = [
            (one, other, f"{place}[{n}]") for n, (one, other) in enumerate(zip(stated, again, strict=True))
        ]
    else:
        numbers = type(stated) in (int, float) and type(again) in (int, float)
        alike = math.isclose(stated, again, rel_tol=TOLERANCE) if numbers else stated == again
        same = alike and isinstance(stated, bool) == isinstance(again, bool)
        return "" if same else f"{place} = {stated!r:.200}; accounted again {again!r:.200}"
    return next((found for one in pairs if (found := unlike(*one))), "")


def _accounts(rerun: Rerun) -> list[EdgeAccount]:
    return sorted(rerun.server.edges.values(), key=lambda account: account.index)
