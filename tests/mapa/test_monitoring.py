"""Metrics by Prometheus's conventions; the files of the profile `monitoring`; the page, which lists what is exported.

Where promtool is installed (Debian package `prometheus`, 19 MB to download) it judges the same files.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cloud.metrics import FAMILIES as CLOUD
from cloud.metrics import STALENESS
from common.telemetry.family import Buckets, Family, MetricKind, Reading
from edge.metrics import FAMILIES as EDGE
from tests.common.test_telemetry import exposition

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docker" / "monitoring"
BOARD = json.loads((MONITORING / "grafana" / "dashboards" / "mapa.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"][0]["rules"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
FAMILIES = {family.name: family for family in (*CLOUD, *EDGE)}
PROMTOOL = shutil.which("promtool")
UNITS = ("seconds", "bytes", "ratio")
NOT_UNITS = {"milliseconds", "ms", "minutes", "hours", "kilobytes", "kb", "mb", "percent", "second", "byte"}


def a_reading(family: Family) -> Reading:
    if family.kind is MetricKind.HISTOGRAM:
        buckets = Buckets(tuple(map(float, STALENESS)))
        buckets.observe(3)
        return buckets
    return 1 if family.label is None else dict.fromkeys(family.values or ("one",), 1)


def whole_text() -> str:
    return exposition({family: a_reading(family) for family in FAMILIES.values()}).decode()


# -- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*CLOUD, *EDGE], ids=lambda family: family.name)
def test_a_name_keeps_the_conventions(family: Family) -> None:
    room = "cloud" if family in CLOUD else "edge"
    assert re.fullmatch(rf"mapa_{room}_[a-z][a-z_]*[a-z]", family.name), (
        "no colon: those are of recording rules"
    )
    assert family.name.endswith("_total") == (family.kind is MetricKind.COUNTER)
    words = family.name.split("_")
    assert not {"counter", "gauge", "histogram", "metric"} & set(words), "the type is said elsewhere"
    assert not NOT_UNITS & set(words), "base units alone"
    for unit in UNITS:
        assert unit not in words or family.name.removesuffix("_total").endswith(unit), "the unit comes last"
    if "timestamp" in words:
        assert family.name.endswith("_timestamp_seconds")
    assert not family.name.endswith(("_sum", "_count", "_bucket"))
    assert family.text
    assert family.text[0].isalnum() or family.text[0] in "γδ"
    assert family.text.endswith(".")
    assert "\n" not in family.text
    if family.label is not None:
        assert re.fullmatch(r"[a-z_]+", family.label)
        assert family.label not in {"le", "quantile", "job", "instance"}
        assert family.label not in words[:-1] or family.name.endswith("_info")
    assert family.values is None or len(set(family.values)) == len(family.values) <= 16


def test_every_family_has_help_and_type_in_the_text_and_none_comes_twice() -> None:
    text = whole_text()
    helps, types = (
        re.findall(r"^# HELP (\w+) .+$", text, re.M),
        dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M)),
    )
    assert sorted(helps) == sorted(types) == sorted(FAMILIES)
    assert types == {name: family.kind.value for name, family in FAMILIES.items()}


if PROMTOOL is not None:  # else there is no such test: a skip would be a failure where none may be

    def test_promtool_finds_nothing_in_the_metrics() -> None:
        done = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=whole_text(), capture_output=True, text=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_promtool_finds_nothing_in_configuration_and_rules(tmp_path: Path) -> None:
        shutil.copy(MONITORING / "rules.yml", tmp_path)
        text = (MONITORING / "prometheus.yml").read_text().replace("/etc/prometheus/rules.yml", "rules.yml")
        (tmp_path / "prometheus.yml").write_text(text)
        command = [PROMTOOL, "check", "config", str(tmp_path / "prometheus.yml")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"{len(RULES)} rules found" in done.stdout


# -- queries of rules and board ---------------------------------------------------------------------------


def queries() -> list[str]:
    panels = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
    return [*panels, *(rule["expr"] for rule in RULES)]


def used(query: str) -> list[tuple[str, str, str]]:
    """Return (name, suffix of a histogram, what comes before) of every metric that a query names."""
    found = []
    for match in re.finditer(r"\bmapa_\w+", query):
        name = match[0]
        suffix = next(
            (s for s in ("_bucket", "_sum", "_count") if name.endswith(s) and name not in FAMILIES), ""
        )
        found.append((name.removesuffix(suffix), suffix, query[: match.start()]))
    return found


@pytest.mark.parametrize("query", queries())
def test_a_query_names_what_is_exported_and_rates_counters_alone(query: str) -> None:
    assert used(query)
    labels = {"instance", "job"}
    for name, suffix, before in used(query):
        assert name in FAMILIES, name
        family = FAMILIES[name]
        assert bool(suffix) == (family.kind is MetricKind.HISTOGRAM)
        counts = family.kind is MetricKind.COUNTER or bool(suffix)
        assert (
            re.search(r"(?:rate|increase)\($", before) is not None
            if counts
            else not before.endswith(("rate(", "increase("))
        )
        labels |= {family.label} if family.label is not None else set()
        labels |= {"le"} if suffix == "_bucket" else set()
    grouped = [word for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for word in group.split(", ")]
    matched = re.findall(r"[{,]\s*(\w+)(=~|=|!=)\"([^\"]*)\"", query)
    assert {*grouped, *(label for label, _, _ in matched)} <= labels
    for label, _, text in matched:
        allowed = {
            value
            for name, _, _ in used(query)
            for value in FAMILIES[name].values or ()
            if FAMILIES[name].label == label
        }
        assert set(text.split("|")) <= allowed


def test_every_metric_is_on_the_board_or_in_a_rule_or_known_to_need_neither() -> None:
    shown = {name for query in queries() for name, _, _ in used(query)}
    assert FAMILIES.keys() - shown == {
        *("mapa_cloud_run_info", "mapa_edge_run_info", "mapa_cloud_edges_expected", "mapa_cloud_connected"),
        *("mapa_cloud_last_update_timestamp_seconds", "mapa_cloud_evaluation_updates"),
        *("mapa_edge_state", "mapa_edge_connected", "mapa_edge_delta"),
    }


def test_the_board_has_panels_that_a_person_can_read() -> None:
    panels = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert (BOARD["uid"], BOARD["editable"]) == ("mapa", False)
    [source] = yaml.safe_load((MONITORING / "grafana/datasources/prometheus.yml").read_text())["datasources"]
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == source["uid"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for target in panel["targets"]:
            assert target["legendFormat"]
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            labels = {FAMILIES[name].label for name, _, _ in used(target["expr"])}
            assert shown <= {"instance", "le", *labels}
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for name, suffix, _ in used(panel["targets"][0]["expr"]):
            if name.endswith("_seconds"):
                assert unit == "s", (name, suffix)
            if name.endswith("_bytes"):
                assert unit == "bytes"
            if name.endswith("_ratio"):
                assert unit == "percentunit"
    boxes = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [
        (x, y) for b in boxes for x in range(b["x"], b["x"] + b["w"]) for y in range(b["y"], b["y"] + b["h"])
    ]
    assert len(set(cells)) == len(cells), "no panel lies on another"


def test_every_rule_says_what_to_do() -> None:
    for rule in RULES:
        assert re.fullmatch(r"Mapa[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}


# -- the profile ------------------------------------------------------------------------------------------


def test_the_profile_publishes_on_loopback_alone_and_has_no_password() -> None:
    for name in ("prometheus", "grafana"):
        service = COMPOSE["services"][name]
        assert service["profiles"] == ["monitoring"]
        assert service["ports"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["cap_drop"] == ["ALL"]
    settings = COMPOSE["services"]["grafana"]["environment"]
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true", "else admin/admin"
    assert (settings["GF_AUTH_DISABLE_LOGIN_FORM"], settings["GF_AUTH_BASIC_ENABLED"]) == ("true", "false")
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert not [name for name in settings if "PASSWORD" in name]
    assert "federation" not in COMPOSE["services"]["grafana"]["networks"]


def test_cloud_and_edge_publish_no_port_and_prometheus_reaches_them() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job["dns_sd_configs"][0] for job in config["scrape_configs"]}
    for name in ("cloud", "edge"):
        service = COMPOSE["services"][name]
        assert "ports" not in service
        assert service["environment"]["METRICS_PORT"] == "${METRICS_PORT:-}", "off by default"
        assert set(service["networks"]) & set(COMPOSE["services"]["prometheus"]["networks"])
        assert (jobs[name]["names"], jobs[name]["type"], jobs[name]["port"]) == ([name], "A", 9464)
    assert "METRICS_PORT=9464" in (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")


def test_what_is_mounted_is_there() -> None:
    for name in ("prometheus", "grafana"):
        for mount in COMPOSE["services"][name]["volumes"]:
            place, _, inside = mount.partition(":")
            if place.startswith("./"):
                assert (ROOT / place).exists(), mount
                assert inside.endswith(":ro")
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert config["rule_files"] == ["/etc/prometheus/rules.yml"]


def test_a_profile_that_is_not_asked_for_needs_nothing() -> None:
    """Compose fills in the variables of every service, asked for or not: none may be obligatory."""
    assert ":?" not in (ROOT / "docker-compose.yml").read_text()


# -- the page ---------------------------------------------------------------------------------------------


def rows_of(families: tuple[Family, ...]) -> list[str]:
    return [f"| `{one.name}` | {one.kind.value} | {_labels(one)} | {one.text} |" for one in families]


def _labels(family: Family) -> str:
    if family.label is None:
        return ""
    return f"`{family.label}`" + (f": {', '.join(family.values)}" if family.values else "")


def test_the_page_lists_every_metric_as_the_code_has_it() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| `mapa_.*$", page, re.M)
    assert tables == [*rows_of(CLOUD), *rows_of(EDGE)]
