"""Releases against the edges' ledgers, and ε against an accounting done again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloud.terms import EdgeAccount
from common.accounting.releases import ReleaseKind
from common.datasets.source import LOCAL
from common.noise.mechanism import Sampling
from common.scenario.parts import least_records
from common.scenario.scenario import Scenario
from edge.preparation import cut_of
from mapa.recording import ENGINES, privacy_of
from mapa.verification.check import Check, failed, not_checked, passed
from mapa.verification.ledgers import PART, LedgerStatement, is_name_of
from mapa.verification.rerun import Rerun
from mapa.verification.run_files import MANIFEST, SUMMARY, RunFiles, UnreadableError

_GROUPS = "GROUPS"  # in the place of a fingerprint of groups, which needs the data set
TOLERANCE = 1e-6  # relative, of ε: numerical libraries of other versions may round otherwise


def releases_against_ledgers(files: RunFiles, rerun: Rerun, scenario: Scenario) -> Iterator[Check]:
    """Check released ≥ received ≥ applied for every edge whose ledger is here; the others are not checked."""
    ledgers = {one.edge_id: one for one in files.ledgers}
    accounts, manifest = _accounts(rerun), files.json(MANIFEST)
    sizes, least = shard_sizes(manifest, scenario), least_records(scenario)
    wrong = 0
    for one in files.ledgers:
        if one is not ledgers[one.edge_id]:
            wrong += 1
            yield failed("ledgers", one.part, f"{one.edge_id}: another part is of this edge, too")
        if not is_name_of(one.run, str(manifest.get("run"))):
            wrong += 1
            yield failed("ledgers", one.part, f"{one.edge_id}: of run {one.run!r:.80}")
    for edge_id in ledgers.keys() - {account.edge_id for account in accounts}:
        wrong += 1
        yield failed("ledgers", ledgers[edge_id].part, f"{edge_id}: no such edge in the log")
    for part, edge_id in files.other_ledgers.items():
        count = rerun.received.get(edge_id, 0)
        if count or (rerun.received and not ledgers):
            wrong += 1
            yield failed("ledgers", part, f"{edge_id}: no account of this run; the log has {count} gradients")
    for account in accounts:
        ledger = ledgers.get(account.edge_id)
        if ledger is None:
            continue
        received = rerun.received.get(account.edge_id, 0)
        if not ledger.releases >= account.last_sequence or not ledger.releases >= received >= account.applied:
            wrong += 1
            yield failed(
                "ledgers",
                ledger.part,
                f"{account.edge_id}: released {ledger.releases}, received {received} up to sequence"
                f" {account.last_sequence}, applied {account.applied}",
            )
        if least is None and ledger.shard != account.index:
            wrong += 1
            yield failed(
                "ledgers",
                ledger.part,
                f"{account.edge_id}: of shard {ledger.shard}; by the log {account.index}",
            )
        most = ledger.releases * scenario.mechanism.steps  # each local step is a release
        epochs = scenario.mechanism.sampling is Sampling.SHUFFLED  # one charge for all releases of an epoch
        fewest = min(most, 1) if epochs else most
        if not fewest <= ledger.charges <= most:
            wrong += 1
            yield failed(
                "ledgers",
                ledger.part,
                f"{account.edge_id}: {most} releases, {ledger.charges} charges",
            )
        more = ledger.releases - max(account.last_sequence, rerun.lives.known(account.edge_id)) - 1
        if more > 0:  # one more may be on its way
            yield not_checked(
                "ledgers",
                ledger.part,
                f"{account.edge_id}: {more} releases that this run's ε does not count: of a later run of the name, or"
                " charged by its operator",
            )
        for words in _other_records(ledger, manifest, scenario, later=more > 0):
            wrong += 1
            yield failed("ledgers", ledger.part, f"{account.edge_id}: {words}")
        kind = ReleaseKind(account.law, scenario.mechanism, sizes[account.index])
        if not _is_of(ledger.kind, json.loads(json.dumps(kind.fields())), least):
            wrong += 1
            yield failed(
                "ledgers", ledger.part, f"{account.edge_id}: released in another way than the run states"
            )
    here = sum(account.edge_id in ledgers for account in accounts)
    if here and not wrong:
        yield passed("ledgers", PART, f"released ≥ received ≥ applied on {here} edges")
    if any(one.dataset is None for one in files.ledgers):
        yield not_checked("ledgers", PART, "data set, partition and seed: this bundle's format does not say")
    if here < len(accounts):
        yield not_checked(
            "ledgers", PART, f"of {len(accounts) - here} edges: their ledgers stayed on their edges"
        )


def _other_records(
    ledger: LedgerStatement, manifest: Mapping[str, Any], scenario: Scenario, *, later: bool
) -> Iterator[str]:
    """Say in what a ledger is of other records than the run's, or of a run that was seeded otherwise.

    `later`: a later run of the name has the same account, and may have been seeded.
    """
    if ledger.dataset is None or ledger.partition is None:
        return
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
    if ledger.reproducible is not seeded and not (ledger.reproducible and later):
        yield f"reproducible = {ledger.reproducible}; by the scenario {seeded}"


def statement_again(files: RunFiles, rerun: Rerun, scenario: Scenario) -> Iterator[Check]:
    """Account the releases again, from the scenario and the log's counts, and compare what the run states."""
    summary, manifest = files.json(SUMMARY), files.json(MANIFEST)
    stated = summary.get("privacy")
    if stated is None:
        yield not_checked("ε", SUMMARY, "the run states no guarantee: its accounting was interrupted")
        return
    accounts, releases = _accounts(rerun), summary.get("releases")
    sizes = shard_sizes(manifest, scenario)
    simulated = manifest.get("engine") in ENGINES
    if not isinstance(releases, list) or len(releases) != len(accounts):
        yield failed(
            "releases", SUMMARY, f"releases = {releases!r:.100}: must be one for each edge of the log"
        )
        return
    for account, count in zip(accounts, releases, strict=True):
        most = max(account.last_sequence, rerun.lives.known(account.edge_id)) + 1
        if type(count) is not int or not account.last_sequence <= count <= most:
            yield failed(
                "releases",
                SUMMARY,
                f"{account.edge_id}: {count!r:.40} releases; by the log {account.last_sequence} to {most}",
            )
            return
    yield passed("releases", SUMMARY, "as many as the log proves, or one more that may have been under way")
    again = privacy_of(
        scenario,
        [
            (account.index, str(account.edge_id), account.law, sizes[account.index], count)
            for account, count in zip(accounts, releases, strict=True)
        ],
        None if simulated else rerun.lives,
    )
    place = unlike(stated, json.loads(json.dumps(again)))
    if place:
        yield failed("ε", SUMMARY, f"privacy{place}")
    else:
        figure = again.get("epsilon")
        words = "ε = ∞" if figure is None else f"ε = {figure:.6g} at δ = {again['delta']:g}"
        yield passed("ε", SUMMARY, f"{words}: accounted again, to {TOLERANCE:g}")
    yield not_checked(
        "shard sizes",
        MANIFEST,
        "n_k as the run states them; they follow from the data set, which is not here",
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


def shard_sizes(manifest: Mapping[str, Any], scenario: Scenario) -> list[int]:
    """Return n_k as the manifest states them; where edges bring records of their own, the least that takes part."""
    sizes, least = manifest.get("shard_sizes"), least_records(scenario)
    if least is not None and sizes == []:
        return [least] * scenario.workers
    if (
        not isinstance(sizes, list)
        or len(sizes) != scenario.workers
        or any(type(size) is not int or size < 1 for size in sizes)
    ):
        raise UnreadableError(MANIFEST, f"shard_sizes: must be {scenario.workers} counts")
    return sizes


def _is_of(kept: Mapping[str, Any], stated: dict[str, Any], least: int | None) -> bool:
    """Tell whether a ledger's kind of release is what the run states; records of an edge's own may be more."""
    size = kept.get("shard_size")
    if least is not None and type(size) is int and size >= least:
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
