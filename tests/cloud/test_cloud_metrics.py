"""What the cloud tells Prometheus, against what its records say."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import pytest

from cloud.metrics import _BY_NAME, DROPPED, FAMILIES, HELLO_REFUSALS, REFUSALS, SECONDS, read_cloud
from cloud.recovery_log import History
from cloud.service import CloudService
from common.messages import GradientRefused
from common.records.recorder import Journal, Recorder
from common.telemetry.family import Buckets, MetricKind
from common.wire.topics import EdgeTopic
from tests.cloud.test_cloud_service import THEIRS, Bed, begun
from tests.common.test_telemetry import exposition, read

ROOT = Path(__file__).parents[2]


def value(bed: Bed, name: str, label: str = "") -> float | None:
    bed.service.records.write()
    family = _BY_NAME[name]
    suffix = "_count" if family.kind is MetricKind.HISTOGRAM else ""
    return read(exposition(read_cloud(bed.service))).get((family.name + suffix, label))


def test_a_cloud_that_has_seen_nothing_says_so() -> None:
    bed = Bed()
    readings = read_cloud(bed.service)
    assert value(bed, "updates") == value(bed, "staleness") == 0
    assert not readings.keys() & {_BY_NAME["last_update_timestamp_seconds"], _BY_NAME["reply_seconds"]}, (
        "what is not known is left out, never a number"
    )


def test_counts_are_those_of_the_records() -> None:
    bed = Bed({"edges": 2})
    bed.service.traffic.replies = Buckets(SECONDS)
    bed.hello("a")
    bed.hello("b")
    for sequence in (1, 2, 2, 3):
        bed.gradient("a", sequence)
    bed.gradient("nobody", 1)
    bed.hello("c")  # the fleet is full
    bed.leave("b", "shutdown")
    with pytest.raises(Exception, match="gradient"):
        bed.service.on_gradient("mapa/v1/service/edge/a/gradient", b"junk")
    applied = bed.events("gradient_applied")
    assert value(bed, "updates") == value(bed, "staleness") == len(applied) > 0
    assert value(bed, "refusals", "duplicate") == 1
    assert value(bed, "refusals", "stranger") == 1
    assert value(bed, "hello_refusals", "fleet-full") == 1
    assert value(bed, "dropped_messages", "gradient") == 1
    assert (value(bed, "edges", "present"), value(bed, "edges", "left")) == (1, 1)
    assert (value(bed, "reply_seconds") or 0) >= len(applied)


def test_strangers_and_junk_make_no_series() -> None:
    bed = begun({"edges": 1})
    before = set(read(exposition(read_cloud(bed.service))))
    for k in range(50):
        bed.hello(f"stranger-{k}", THEIRS)
        bed.gradient(f"stranger-{k}", k)
        bed.edge.publish(f"mapa/v1/service/edge/x{k}/{EdgeTopic.HELLO.value}", b"\x00" * k, qos=1)
        bed.broker.settle()
    bed.service.records.write()
    after = set(read(exposition(read_cloud(bed.service))))
    assert after == before


def test_the_closed_sets_name_every_word_that_the_code_uses() -> None:
    """A new reason must be added to the set: it would count as `other`."""
    server = (ROOT / "cloud/server.py").read_text()
    body = server.partition("def judge_gradient(")[2].partition("def _apply(")[0]
    said = set(re.findall(r'(?:refusal = |arrived, (?:account|None), )"([\w-]+)"', body))
    documented = set(re.findall(r"`([\w-]+)`", GradientRefused.__doc__ or ""))
    assert said == documented == set(REFUSALS)
    judged = (ROOT / "cloud/admission.py").read_text().partition("def judge_hello(")[2]
    assert set(re.findall(r'refuse\("([\w-]+)"', judged)) | {"mechanism"} == set(HELLO_REFUSALS)
    places = [ROOT / "cloud/service.py", ROOT / "cloud/presence.py", ROOT / "mapa/cloud_run.py"]
    assert {
        word for path in places for word in re.findall(r'dropped\["([\w-]+)"\]', path.read_text())
    } == set(DROPPED)


def test_the_age_of_log_and_checkpoint(tmp_path: Path) -> None:
    bed = Bed()
    history = History(tmp_path, incarnation=1, dimension=bed.service.server.model.size, keep=True)
    bed.service.history = history
    found = read(exposition(read_cloud(bed.service)))
    assert ("mapa_cloud_log_timestamp_seconds", "") not in found
    assert ("mapa_cloud_checkpoint_timestamp_seconds", "") not in found
    history.begin(dict)
    bed.hello("a")
    first = read(exposition(read_cloud(bed.service)))
    assert first["mapa_cloud_log_bytes", ""] == history.log.path.stat().st_size
    assert first["mapa_cloud_log_timestamp_seconds", ""] == history.log.path.stat().st_mtime
    assert first["mapa_cloud_checkpoint_timestamp_seconds", ""] == history.checkpointed
    history.close()


def test_the_service_counts_nothing_more_where_nobody_asks() -> None:
    bed = begun()
    bed.gradient("a", 1)
    assert bed.service.traffic.replies is None
    assert isinstance(bed.service, CloudService)
    assert Recorder(Journal(io.StringIO())).tally.staleness == Counter()
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
