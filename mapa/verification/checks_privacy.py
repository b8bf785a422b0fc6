"""Check releases against the edges' ledgers, and ε against an accounting done again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.accounting.releases import ReleaseKind
from common.datasets.source import LOCAL
from common.noise.law import NoiseLaw
from common.quantities import EdgeId
from common.records.regular import rows, table
from common.scenario.parts import least_records
from edge.joining import cut_of
from mapa.releases import EARLIER, Starts, privacy_of, releases_of
from mapa.verification.check import (
    Check,
    NotCheckedError,
    Status,
    UnreadableError,
    claimed,
    failed,
    guarded,
    not_checked,
    passed,
    unlike,
)
from mapa.verification.checks_records import CheckedRun
from mapa.verification.replay import LogReplay
from mapa.verification.untrusted_files import LEDGERS, MANIFEST, SUMMARY, LedgerStatement, is_name_of

_GROUPS = "GROUPS"  # in the place of a fingerprint of groups, which needs the data set
TOLERANCE = 1e-6  # relative, of ε: numerical libraries of other versions may round otherwise


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


def releases_shown(run: CheckedRun) -> list[Released]:
    """Return what the log proves of every edge; without one, what events.jsonl or else the summary's rows say."""
    replay, events, shown = run.replay, run.events, list[Released]()
    last_edge: int | None = None
    if replay is not None:
        last_edge = replay.applied[-1].edge if replay.applied else None
        for of in sorted(replay.server.edges.values(), key=lambda account: account.index):
            last, used = replay.tally.edges[of.index].last_sequence, of.last_sequence
            shown.append(Released(of.index, str(of.edge_id), of.law, of.applied, last, used, used))
    elif events is not None:
        last_edge = events.last_edge
        for k, row in sorted(events.tally.edges.items()):
            used, law = events.sequences.get(row.edge_id, 0), events.law(row.edge_id, k)
            shown.append(Released(k, row.edge_id, law, row.applied, row.last_sequence, used, used))
    else:
        for stated in run.files.summary["edges"]:
            k, last = stated["edge"], stated["last_sequence"]
            law = run.scenario.law(k)
            shown.append(Released(k, stated["edge_id"], law, stated["applied"], last, last, last))
    if run.simulated:
        return [_simulated(edge, run, last_edge) for edge in shown]
    if replay is not None:
        return [_logged(edge, run, replay) for edge in shown]
    ledgers = {ledger.edge_id: ledger.releases for ledger in run.files.ledgers.statements}
    return [
        replace(edge, most=max(ledgers.get(edge.edge_id, 0), edge.least) + 1, sure=edge.edge_id in ledgers)
        for edge in shown
    ]


def _logged(edge: Released, run: CheckedRun, replay: LogReplay) -> Released:
    """Return exactly how many releases the log proves, but for a budget that ends in the last one."""
    account, begun = replay.server.edges[EdgeId(edge.edge_id)], replay.server.schedule is not None
    known, most = releases_of(account, replay.restarts, replay.tally, begun=begun)
    privacy = run.scenario.privacy
    budget = run.engine == "processes" and run.scenario.private and privacy.total_epsilon is not None
    return replace(edge, least=known if budget else most, most=most)


def _simulated(edge: Released, run: CheckedRun, last_edge: int | None) -> Released:
    """Return what a simulated edge released: those applied, and one that was under way at the end."""
    summary = run.files.summary
    reason, gone = summary.get("reason"), {row["edge"]: row["gone"] for row in summary["edges"]}
    if run.engine == "synchronous":
        more = reason == "time-limit"
    else:
        told_to_end = edge.index == last_edge and reason in ("finished", "diverged")
        more = reason != "no-gradients" and not gone.get(edge.index) and not told_to_end
    away = any(profile.availability is not None for profile in run.scenario.profiles)
    unknown = away or last_edge is None  # whether it was there at the end, or made the last of all
    return replace(edge, least=edge.least + (more and not unknown), most=edge.most + (more or unknown))


def check_privacy(run: CheckedRun) -> Iterator[Check]:
    released = releases_shown(run)
    yield from guarded("ledgers", LEDGERS, check_ledgers, run, released)
    yield from guarded("ε", SUMMARY, check_statement, run, released)


def check_ledgers(run: CheckedRun, released: Sequence[Released]) -> Iterator[Check]:
    """Check that no ledger says more, or less, than the run states; edges whose ledgers are not here are named."""
    ledgers = {ledger.edge_id: ledger for ledger in run.files.ledgers.statements}
    wrong = [*_strange_ledgers(run, released)]
    sizes, own = shard_sizes(run)
    stated = run.files.summary.get("releases")
    counts = stated if isinstance(stated, list) and len(stated) == len(released) else [None] * len(released)
    for edge, count in zip(released, counts, strict=True):
        ledger = ledgers.get(edge.edge_id)
        if ledger is None:
            continue
        kind = ReleaseKind(run.scenario.mechanism(edge.law), sizes[edge.index])
        size = ledger.kind.get("shard_size")
        if own and type(size) is int and size >= kind.shard_size:
            kind = replace(kind, shard_size=size)  # an edge's own records may be more than the run's bound
        details = [*_miscounted(ledger, edge, count, run.replay), *_other_records(ledger, run)]
        fewest, most = _charged(ledger, kind, run)
        if not fewest <= ledger.charges <= most:
            charges = f"{ledger.charges} charges for {ledger.releases} releases"
            details.append(f"{charges}; by the run {fewest} to {most}")
        if not own and ledger.shard != edge.index:
            details.append(f"of shard {ledger.shard}; by the run {edge.index}")
        if ledger.kind != json.loads(json.dumps(kind.fields())):
            details.append("released in another way than the run states")
        wrong += ((ledger.part, f"{edge.edge_id}: {detail}") for detail in details)
    yield from (failed("ledgers", part, detail) for part, detail in wrong)
    here = sum(edge.edge_id in ledgers for edge in released)
    if here and not wrong:
        yield passed("ledgers", LEDGERS, f"stated ≥ released ≥ applied on {here} edges, charged alike")
    if (away := len(released) - here) and not run.simulated:
        yield claimed("ledgers", LEDGERS, f"nothing is known of {away} edges' ledgers: they are not here")


def _strange_ledgers(run: CheckedRun, released: Sequence[Released]) -> Iterator[tuple[str, str]]:
    """Yield the parts that are ledgers of no edge of the run, or a second one of it, and why."""
    applied, seen = {edge.edge_id: edge.applied for edge in released}, set()
    ledgers, name = run.files.ledgers, str(run.files.manifest.get("run"))
    for ledger in reversed(ledgers.statements):
        if ledger.edge_id in seen:
            yield ledger.part, f"{ledger.edge_id}: another part is of this edge, too"
        seen.add(ledger.edge_id)
        if not is_name_of(ledger.run, name):
            yield ledger.part, f"{ledger.edge_id}: of run {ledger.run!r:.80}"
        if ledger.edge_id not in applied:
            yield ledger.part, f"{ledger.edge_id}: no such edge in the run"
    for part, edge_id in ledgers.others.items():
        if applied.get(edge_id, 0) or (any(applied.values()) and not ledgers.statements):
            yield part, f"{edge_id}: no account of this run, which has gradients of it"


def _miscounted(
    ledger: LedgerStatement, edge: Released, stated: object, replay: LogReplay | None
) -> Iterator[str]:
    """Say where a ledger has not applied ≤ released ≤ stated."""
    known = edge.last  # what was refused for good may be of anybody who can write to the edge's topic
    if replay is not None:
        known = max(known, replay.restarts.known(EdgeId(edge.edge_id)))
    if not ledger.releases >= max(known, edge.applied):
        yield f"released {ledger.releases}; the run applied {edge.applied}, up to its gradient {known}"
    if type(stated) is not int or ledger.releases > stated:
        yield (
            f"released {ledger.releases}, and the run's ε counts {stated!r:.40}: of a later run of the name, or charged"
            " by its operator; a run is bundled before the next of its name begins"
        )


def _charged(ledger: LedgerStatement, kind: ReleaseKind, run: CheckedRun) -> tuple[int, int]:
    """Return the fewest and the most charges of a ledger's releases: in epochs each restart adds some."""
    fewest = kind.charges(ledger.releases)
    if not kind.mechanism.sampler.by_epoch:
        return fewest, fewest
    if run.replay is not None:
        return fewest, run.replay.restarts.charges(EdgeId(ledger.edge_id), kind, ledger.releases)
    return fewest, max(fewest, _stated_charges(run).get(ledger.edge_id, 0))


def _stated_charges(run: CheckedRun) -> dict[str, int]:
    stated = rows(table(run.files.summary, "privacy"), "edges")
    return {str(row.get("edge_id")): row["charges"] for row in stated if type(row.get("charges")) is int}


def _other_records(ledger: LedgerStatement, run: CheckedRun) -> Iterator[str]:
    """Say in what a ledger is of other records than the run's, or of a run that was seeded otherwise."""
    scenario, cut = run.scenario, LOCAL
    stated: object = "its edge's own"
    same = ledger.dataset.startswith(f"{LOCAL}:")
    if least_records(scenario) is None:
        stated = table(run.files.manifest, "data").get(scenario.data.set)
        cut, same = cut_of(scenario, scenario.workers, _GROUPS), ledger.dataset == stated
    if not same:
        yield f"on data set {ledger.dataset!r:.80}; the manifest has {stated!r:.80}"
    if not re.fullmatch(re.escape(cut).replace(_GROUPS, "[0-9a-f]{16}"), ledger.partition):
        yield f"on a shard of {ledger.partition!r:.80}; by the scenario {cut!r:.80}"
    seeded = scenario.seed is not None
    if ledger.reproducible is not seeded:
        yield f"reproducible = {ledger.reproducible}; by the scenario {seeded}"


class _StatedStarts:
    """The starts of edges where no log has their hellos: as charged by the statement, which their ledgers confirm."""

    def __init__(self, run: CheckedRun) -> None:
        self._charges = _stated_charges(run)
        self._earlier = EARLIER in run.files.summary["privacy"]["words"]

    def earlier(self, _edge_id: EdgeId) -> int:
        return int(self._earlier)

    def charges(self, edge_id: EdgeId, kind: ReleaseKind, messages: int) -> int:
        stated = min(self._charges.get(edge_id, 0), messages * kind.mechanism.steps)
        return max(kind.charges(messages), stated)


def check_counts(run: CheckedRun, released: Sequence[Released]) -> Iterator[Check]:
    """Check that as many releases are stated as the records show, with what may have been under way."""
    counts = run.files.summary.get("releases")
    if not isinstance(counts, list) or len(counts) != len(released):
        told = f"releases = {counts!r:.100}: must be one for each of {len(released)} edges"
        yield failed("releases", SUMMARY, told)
        return
    unknown = []
    for edge, count in zip(released, counts, strict=True):
        if type(count) is not int or count < edge.least or (count > edge.most and edge.sure):
            shown = f"{edge.edge_id}: {count!r:.40} releases; by the records {edge.least} to {edge.most}"
            yield failed("releases", SUMMARY, shown)
            return
        if count > edge.most:
            unknown.append(edge.edge_id)
    source = "the log proves" if run.replay is not None else "the records show"
    if unknown:
        told = f"of {', '.join(unknown)[:200]}: only a log or their ledgers can show them"
        yield not_checked("releases", SUMMARY, told)
    else:
        yield passed(
            "releases", SUMMARY, f"as many as {source}, with what may have been under way at the end"
        )


def check_statement(run: CheckedRun, released: Sequence[Released]) -> Iterator[Check]:
    """Account the releases again, from the scenario and what else shows their number, and compare the statement."""
    scenario, summary, replay = run.scenario, run.files.summary, run.replay
    if not isinstance(stated := summary.get("privacy"), dict):
        raise NotCheckedError("the run states no guarantee: its accounting was interrupted")
    sizes, own = shard_sizes(run)
    yield from (counted := [*check_counts(run, released)])
    if any(check.status is Status.FAILED for check in counted):
        return
    odd = [edge.edge_id for edge in released if edge.law != scenario.law(edge.index)]
    if run.simulated and odd:
        told = "noised otherwise than the scenario says, which simulated edges cannot"
        yield failed("ε", SUMMARY, f"{', '.join(odd)[:200]}: {told}")
        return
    starts: Starts | None = None if run.simulated or replay is None else replay.restarts
    if not run.simulated and replay is None and scenario.sampler.by_epoch:
        starts = _StatedStarts(run)
        here = {ledger.edge_id for ledger in run.files.ledgers.statements}
        if missing := ", ".join(edge.edge_id for edge in released if edge.edge_id not in here)[:200]:
            told = f"of {missing}: each restart begins an epoch, and only a log or --ledger shows it"
            yield not_checked("charges", SUMMARY, told)
    counts = zip(released, summary["releases"], strict=True)
    edges = [(edge.index, edge.edge_id, edge.law, sizes[edge.index], count) for edge, count in counts]
    again = privacy_of(scenario, edges, starts, least_records(scenario) if own else None)
    if wrong := unlike(stated, json.loads(json.dumps(again)), "privacy", TOLERANCE):
        yield failed("ε", SUMMARY, wrong)
    else:
        total, alone = scenario.privacy.total_epsilon, _said(again)
        epsilon = _said(again.get("in_sums", again))
        figure = again.get("in_sums", again).get("epsilon")
        both = f"{epsilon} at δ = {again['delta']:g}"
        if "in_sums" in again:
            both = f"in sums {both}; on its own {alone}, where all others side with the cloud"
        yield passed("ε", SUMMARY, f"{both}: accounted again, to {TOLERANCE:g}")
        if total is not None and (figure is None or figure > total * (1 + TOLERANCE)):
            above = (
                f"{epsilon} at δ = {again['delta']:g} is above it; a budget is kept by each edge's own ledger"
            )
            yield claimed("budget", MANIFEST, f"privacy.total_epsilon = {total:g}: {above}")
    if not run.simulated and replay is None and not all(edge.sure for edge in released):
        told = "whether a last gradient was under way: neither log nor ledger shows it"
        yield claimed("releases", SUMMARY, told)
    if not own:
        told = "n_k: they follow from the data set, which is not here; `mapa replay` has it"
        yield claimed("shard sizes", MANIFEST, told)


def _said(figures: Mapping[str, Any]) -> str:
    figure = figures.get("epsilon")
    return "ε = ∞" if figure is None else f"ε = {figure:.6g}"


def why_not_private(manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Return every reason for which this run's records are not differentially private; empty if they are.

    Closed by default: a run that states no ε counts as not private. No code is imported for it.
    """
    reasons = []
    scenario, privacy = table(manifest, "scenario"), table(summary, "privacy")
    if scenario.get("seed") is not None:
        reasons.append("seeded: whoever knows the seed can take the noise off")
    if table(scenario, "records").get("diagnostics") is not False:
        reasons.append("diagnostics: the records hold gradient norms before noise")
    if privacy.get("words") == ["Nothing was released."]:
        return reasons
    figures = (privacy, *rows(privacy, "edges"))
    if bare := [row for row in figures if not isinstance(row.get("epsilon"), int | float)]:
        why = next((str(row["reason"]) for row in bare if row.get("reason")), None)
        reasons.append("no ε is stated" if why is None else f"ε = ∞: {why}")
    return reasons


def shard_sizes(run: CheckedRun) -> tuple[list[int], bool]:
    """Return n_k as the manifest states them, or the least that takes part where only the edges know (True)."""
    scenario, sizes = run.scenario, run.files.manifest.get("shard_sizes")
    least = None if run.simulated else least_records(scenario)
    if least is not None:
        if sizes != []:
            unknown = f"shard_sizes = {sizes!r:.80}: a cloud does not know its edges' numbers"
            raise UnreadableError(MANIFEST, unknown)
        return [least] * scenario.workers, True
    counts = [size for size in sizes if type(size) is int and size > 0] if isinstance(sizes, list) else []
    if counts != sizes or len(counts) != scenario.workers:
        raise UnreadableError(MANIFEST, f"shard_sizes: must be {scenario.workers} counts")
    return counts, False
