"""Runs with a gradient log, made in memory by the real cloud and real edges; and bundles that somebody has changed."""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from cloud.recovery_log import History
from cloud.resume import begin_history
from common.datasets.dataset import Dataset
from common.messages import GradientArrived
from common.models.linear import Softmax
from common.quantities import NoisyGradient, Vector
from common.records.gradient_log import HEAD_BYTES, Entry, Kind, pack_record, parse_record
from common.wire.codec import encode_gradient
from edge.policy import OperatorPolicy
from edge.sqlite_ledger import SqliteLedger
from mapa.cloud_run import CloudRun
from mapa.recording import open_records, record_cloud, write_manifest
from mapa.simulation.simulator import World
from mapa.verification.bundle import NAMES, read_zip, write_zip
from mapa.verification.untrusted_files import canonical_json
from tests.core_support import small_dataset, small_scenario
from tests.mapa.test_conversation import Talk

BLOBS = "tests.verification_support:Blobs"
PRIVATE: dict[str, Any] = {
    "seed": None,
    "data": {"sampler": "poisson"},
    "privacy": {"noise": "gaussian", "noise_multiplier": 4.0},
}
STAMP = "20260101-000000-00000000"


OWN_MODEL = "tests.verification_support:Drawn"


class Drawn(Softmax):
    """A model of one's own whose x₁ is drawn."""

    def initial(self, rng: np.random.Generator) -> Vector:
        return rng.standard_normal(self.dimension).astype(np.float32)


class Blobs:
    """The small data set, by a dotted path."""

    def load(self, data_dir: Path) -> Dataset:  # noqa: ARG002
        return small_dataset()


def logged_run(
    runs: Path,
    *,
    share: float = 0.0,
    edges: int = 3,
    faults: int = 0,
    keep: bool = True,
    before: Callable[[Talk], None] = lambda _talk: None,
    first: Callable[[Talk], None] = lambda _talk: None,
    afterwards: Callable[[Talk], None] = lambda _talk: None,
    **changes: Any,
) -> Path:
    """Let a cloud and its edges make a run over the twin of a broker, and return its directory.

    `before` is called before any edge has started, `first` when all have, `afterwards` when the summary is written
    and the connection is not yet closed.
    """
    scenario = small_scenario(**{"edges": edges, "testbed": {"silent_after": 1000.0}, **changes})
    world = World.on(scenario, small_dataset())
    path = runs / f"talk-{STAMP}"
    with open_records(path) as directory:
        talk = Talk(scenario, share=share, seed=faults, edges_at_least=edges)
        talk.service.records.journal = directory.journal if scenario.records.events else None
        talk.service.evaluations.evaluator = world.evaluator  # with the scenario's λ
        write_manifest(directory, replace(world, scenario=talk.scenario), name="talk", engine="network")
        server = talk.service.server
        history = History(
            path, incarnation=server.incarnation, dimension=server.model.size, keep=keep, say=talk.said.append
        )
        begin_history(talk.service, history, directory)
        before(talk)
        for number in range(edges):
            state = path / "state" / str(number)
            state.mkdir(parents=True)
            policy = OperatorPolicy(
                allowed=frozenset({BLOBS, OWN_MODEL}), allow_seed=True, allow_unprotected=True
            )
            talk.edge(policy, SqliteLedger(state))
        first(talk)
        talk.run()
        assert talk.service.halted is not None
        reason = talk.service.halted.reason
        cloud = SimpleNamespace(setting=world, service=talk.service, directory=directory)
        record_cloud(cast(CloudRun, cloud), name="talk", reason=reason, engine="network")
        afterwards(talk)
        talk.broker.advance(600)
        for client in talk.clients:
            cast(SqliteLedger, client.ledger).close()
    return path


def parts_of(bundle: Path) -> dict[str, bytes]:
    found = read_zip(memoryview(bundle.read_bytes()), NAMES)
    assert not found.faults
    return {name: bytes(content) for name, content in found.parts.items()}


def rewritten(bundle: Path, change: Callable[[dict[str, bytes]], None], **claims: object) -> Path:
    """Return a bundle with changed parts whose hashes and form are right: whoever made it wrote the manifest anew.

    `claims` are what the manifest is to say.
    """
    parts = parts_of(bundle)
    manifest = json.loads(parts.pop("manifest.json"))
    change(parts)
    manifest |= claims
    manifest["parts"] = [
        {"name": name, "size": len(parts[name]), "sha256": hashlib.sha256(parts[name]).hexdigest()}
        for name in sorted(parts)
    ]
    out = bundle.with_name("rewritten.mapa.zip")
    stream = io.BytesIO()
    whole = {"manifest.json": canonical_json(manifest), **{name: parts[name] for name in sorted(parts)}}
    write_zip(stream, {name: memoryview(content) for name, content in whole.items()})
    out.write_bytes(stream.getvalue())
    return out


def entries_of(segment: bytes) -> list[Entry]:
    found, at = [], HEAD_BYTES
    while at < len(segment):
        parsed = parse_record(memoryview(segment), at)
        assert parsed is not None
        entry, at = parsed
        found.append(entry)
    return found


def with_entries(segment: bytes, entries: list[Entry]) -> bytes:
    """Return a segment with other records, each with a right checksum."""
    return segment[:HEAD_BYTES] + b"".join(b"".join(pack_record(*entry)) for entry in entries)


def gradients_in(entries: list[Entry]) -> list[int]:
    """Return the places of the gradients."""
    return [place for place, entry in enumerate(entries) if entry.kind is Kind.GRADIENT]


def nudged(entry: Entry) -> Entry:
    """Return the record with its gradient a thousandth shorter."""
    arrived = entry.arrived
    vector = np.float32(0.999) * arrived.gradient
    other = GradientArrived(
        arrived.edge_id,
        arrived.sequence,
        arrived.version,
        arrived.sensitivity,
        NoisyGradient(vector),
        arrived.incarnation,
    )
    return entry._replace(body=encode_gradient(other))


Parts = dict[str, bytes]
Change = Callable[[Parts], None]
MANIFEST, SUMMARY, EVENTS = "run/manifest.json", "run/summary.json", "run/events.jsonl"
MODEL, SEGMENT, LEDGER = "run/model.safetensors", "run/log/000001.seg", "ledgers/000001.json"


def in_json(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    """Return the change of a JSON part."""

    def edit(parts: Parts) -> None:
        value = json.loads(parts[name])
        change(value)
        parts[name] = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()

    return edit


def in_manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    return in_json(MANIFEST, change)


def in_summary(change: Callable[[dict[str, Any]], object]) -> Change:
    return in_json(SUMMARY, change)


def in_ledger(**changes: object) -> Change:
    return in_json(LEDGER, lambda value: value.update(changes))


def in_log(change: Callable[[list[Entry]], list[Entry] | None]) -> Change:
    """Return the change of the first segment's records, which may be made in place."""

    def edit(parts: Parts) -> None:
        entries = entries_of(parts[SEGMENT])
        changed = change(entries)
        parts[SEGMENT] = with_entries(parts[SEGMENT], entries if changed is None else changed)

    return edit


def without(*prefixes: str) -> Change:
    """Return the change that drops every part whose name begins so."""

    def drop(parts: Parts) -> None:
        for name in [name for name in parts if name.startswith(prefixes)]:
            del parts[name]

    return drop


def failures(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what failed: part → check and detail."""
    return {
        check["part"]: f"{check['name']}: {check['detail']}"
        for check in document["checks"]
        if check["status"] == "failed"
    }


def spoiled(data: st.DataObject, document: dict[str, Any], values: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Return a document with something in it left out or replaced."""
    whole: dict[str, Any] = copy.deepcopy(document)
    value: Any = whole
    while value:
        key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        if not value[key] or not isinstance(value[key], dict | list) or data.draw(st.booleans()):
            break
        value = value[key]
    if value and isinstance(value, dict) and data.draw(st.booleans()):
        del value[key]
    elif value:
        value[key] = data.draw(values)
    return whole
