"""What the dashboard reads while others write: torn lines, rotation, hostile records; the summary's own numbers."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.records import reader as reading
from common.records.reader import EventTail, JsonFile
from mapa.dashboard import watch as watch_module
from mapa.dashboard.folder import RunsFolder
from mapa.dashboard.page_tally import PageTally
from mapa.dashboard.spending import release_kind
from mapa.dashboard.watch import Followed, Watch
from tests.dashboard_support import applied, lines, simulated, write_live_run
from tests.verification_support import spoiled

ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ODD = ANYTHING | st.sampled_from(["@1e400@", "@-1e400@", f"@{'9' * 400}@", f"@{'9' * 5000}@"])


def hostile(value: object) -> str:
    """Return JSON with numbers that no float and no whole number holds."""
    return re.sub(r'"@([^"]*)@"', r"\1", json.dumps(value))


KEYS = st.sampled_from(
    ["edge", "edge_id", "t", "staleness", "sequence", "time", "reason", "stage", "sensitivity", "accuracy"]
)
SCENARIO = {
    "privacy": {"clipping": "per-sample", "scope": "all"},
    "data": {"sampler": "poisson"},
    "batch_size": 8,
}
EVENTS = st.sampled_from(
    [
        *("gradient_applied", "edge_joined", "edge_gone", "evaluated", "stage_opened", "gradient_refused"),
        *("halted", "x"),
    ]
)


def sections(watch: Watch) -> dict[str, Any]:
    watch.read()
    while watch.behind:
        watch.read()
    watch.refresh()
    return json.loads(watch.changed_since(-1))  # type: ignore[no-any-return]


def asked(watch: Watch) -> list[int]:
    """Return the numbers of releases whose ε is to be computed."""
    return [releases for _, releases, _, _ in watch.missing()]


def accounted(watch: Watch) -> dict[str, Any]:
    """Return the sections once all questions are answered."""
    sections(watch)
    while missing := watch.missing():
        watch.answer(missing)
        sections(watch)
    return sections(watch)


def test_a_torn_line_waits_and_no_line_comes_twice(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    tail = EventTail(file)
    assert tail.look() == (False, [])  # not there yet
    text = lines(applied(1), applied(2))
    file.write_text(text[:-10])
    assert tail.look() == (False, [applied(1)])
    assert tail.look() == (False, [])
    file.write_text(text)
    assert tail.look() == (False, [applied(2)])


def test_a_file_that_was_cut_or_replaced_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(lines(applied(1), applied(2)))
    tail = EventTail(file)
    tail.look()
    file.write_text(lines(applied(7)))
    assert tail.look() == (True, [applied(7)])
    other = tmp_path / "other"
    other.write_text(lines(*(applied(t) for t in range(1, 5))))
    other.replace(file)
    anew, records = tail.look()
    assert anew
    assert [record["t"] for record in records] == [1, 2, 3, 4]


def test_a_large_file_comes_in_chunks_and_a_line_without_end_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK", 400)
    monkeypatch.setattr(reading, "LONGEST", 300)
    file = tmp_path / "events.jsonl"
    file.write_text(lines(applied(1)) + "x" * 1000 + "\n[1]\nnonsense\n" + lines(applied(2), applied(3)))
    tail, records = EventTail(file), []
    for _ in range(20):
        records += tail.look()[1]
    assert [record["t"] for record in records] == [1, 2, 3]
    assert tail.unreadable == 3
    assert not tail.behind


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text(lines(applied(1)))
    (tmp_path / "events.jsonl").symlink_to(secret)
    (tmp_path / "summary.json").symlink_to(secret)
    assert EventTail(tmp_path / "events.jsonl").look() == (False, [])
    assert JsonFile(tmp_path / "summary.json").look() == {}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.dictionaries(KEYS, ANYTHING, max_size=8)), max_size=12))
def test_hostile_records_are_counted_and_never_break_a_page(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, dict[str, Any]]]
) -> None:
    gathered = PageTally()
    gathered.take([applied(1), *({**fields, "event": event} for event, fields in records)])
    assert gathered.tally.updates >= 1
    watch = Watch(tmp_path_factory.getbasetemp() / "none")
    watch.gathered = gathered
    watch.refresh()  # raises where something is not JSON
    watch.listed()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("ended"), iterations=10, edges=2)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data(), ANYTHING, st.booleans())
def test_a_hostile_manifest_and_summary_never_break_a_page(
    ended: Path,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    value: Any,
    recorded: bool,
) -> None:
    path = tmp_path_factory.mktemp("run")
    for name in ("manifest.json", "summary.json"):
        document = json.loads((ended / name).read_text())
        for _ in range(data.draw(st.integers(0, 4))):
            document = spoiled(data, document, ODD)
        (path / name).write_text(hostile(document))
    joined = {"event": "edge_joined", "edge": 0, "edge_id": "edge-0", "t": 1, "noise": "gaussian"}
    records = [{**joined, "noise_multiplier": 4.0}, applied(1)]
    (path / "events.jsonl").write_text(lines(*records) if recorded else "")
    (path / "audit.json").write_text(
        hostile({"games": [{"kind": "scenario", "name": value, "lower_epsilon": value}], "one_run": value})
    )
    watch = Watch(path)
    assert sections(watch)["head"]["failed"] == []
    watch.missing()
    json.dumps(RunsFolder(path.parent).lines(), allow_nan=False)


@pytest.mark.parametrize("value", ["NaN", "1e400", "-Infinity", "9" * 400, "9" * 5000, '"x"', "[]", "{}"])
def test_a_wrong_value_in_a_summary_is_none_and_the_rest_is_shown(tmp_path: Path, value: str) -> None:
    path = write_live_run(tmp_path, "first", applied(1), applied(2))
    text = (
        '{"updates": 2, "reason": "finished", "staleness": {"mean": @, "p50": @, "max": @},'
        ' "edges": [{"edge": 0, "applied": @}, {"edge": @, "applied": 1}], "network": [{"edge": @}],'
        ' "privacy": {"edges": [{"edge": @, "epsilon": @}]}}'
    )
    (path / "summary.json").write_text(text.replace("@", value))
    page = sections(Watch(path))
    assert page["head"]["failed"] == []
    assert (page["head"]["updates"], page["head"]["reason"]) == (2, "finished")
    assert page["staleness"]["summary"] == {"mean": None, "p50": None, "max": None}
    [lane] = page["fleet"]["edges"]
    assert (lane["edge"], lane["applied"], lane["share"]) == (0, None, 0.0)


def test_a_section_that_fails_is_empty_and_named_and_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(usual: Callable[..., Any]) -> Callable[..., Any]:
        def make(*given: Any) -> Any:
            if given[-1].counted.number:
                raise ZeroDivisionError("odd")
            return usual(*given)

        return make

    monkeypatch.setattr(watch_module.sections, "staleness", broken(watch_module.sections.staleness))
    monkeypatch.setattr(watch_module.EdgeKinds, "of", broken(watch_module.EdgeKinds.of))
    watch = Watch(write_live_run(tmp_path, "first", applied(1)))
    page = sections(watch)
    failed = [
        f"{name}: unexpected error: ZeroDivisionError: odd" for name in ("fleet", "staleness", "privacy")
    ]
    assert all(said.startswith(one) for said, one in zip(page["head"]["failed"], failed, strict=True))
    assert watch.missing() == []
    assert page["fleet"]["edges"] == page["staleness"]["bins"] == []
    assert page["head"]["updates"] == 1


def test_the_list_does_not_wait_for_a_pipe_in_the_place_of_events(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    os.mkfifo(run / "events.jsonl")
    [line] = RunsFolder(tmp_path).lines()["runs"]
    assert (line["run"], line["updates"]) == ("run", None)


def test_code_that_records_name_is_not_loaded() -> None:
    joined = {"noise": "tests.no_such_module:Law", "noise_multiplier": 4.0}
    assert release_kind(SCENARIO, 100, joined) is None
    assert release_kind(SCENARIO, 100, {**joined, "noise": "gaussian"}) is not None


@pytest.mark.slow
def test_the_page_has_the_numbers_of_the_summary(tmp_path: Path) -> None:
    path = simulated(tmp_path, iterations=300, delays={"kind": "exponential"})
    summary = json.loads((path / "summary.json").read_text())
    whole = sections(Watch(path))
    (path / "summary.json").rename(tmp_path / "kept.json")
    live = sections(Watch(path))  # the events alone
    for page in (whole, live):
        head = page["head"]
        assert head["updates"] == summary["updates"]
        assert head["best"] == summary["best_accuracy"]
        assert head["best_at"] == summary["best_accuracy_at"]
        assert head["latest"]["values"] == {name: summary[f"final_{name}"] for name in ("accuracy", "loss")}
        assert page["staleness"]["summary"] == summary["staleness"]
        assert page["training"]["stages"] == summary["stages"]
        curve = page["training"]["curves"]["accuracy"]
        assert curve["t"] == [row["updates"] for row in summary["evaluations"]]
        assert curve["value"] == [row["accuracy"] for row in summary["evaluations"]]
        for lane, row in zip(page["fleet"]["edges"], summary["edges"], strict=True):
            assert {key: lane[key] for key in row} == row
    assert (whole["head"]["state"], live["head"]["state"]) == ("ended", "ending")
    assert whole["privacy"]["words"] == summary["privacy"]["words"]
    for lane, row in zip(whole["fleet"]["edges"], summary["privacy"]["edges"], strict=True):
        assert lane["epsilon"] == row["epsilon"]


@pytest.mark.slow
def test_the_stages_of_a_run_follow_the_plan_that_is_shown(tmp_path: Path) -> None:
    """In the simulation τ_max is configured and no edge joins later: theory and run are one."""
    page = sections(Watch(simulated(tmp_path, iterations=300)))
    stages, plan = page["training"]["stages"], page["training"]["plan"]
    assert len(stages) == len(plan) > 1
    for stage, planned in zip(stages, plan, strict=True):
        assert (stage["t"], stage["length"]) == (planned["t"], planned["length"])
        assert stage["learning_rate"] == pytest.approx(planned["learning_rate"], rel=1e-12)


@pytest.mark.slow
def test_epsilon_over_releases_ends_where_the_statement_does(tmp_path: Path) -> None:
    path = simulated(tmp_path, iterations=4, edges=1, algorithm={"tau_max": 1})
    stated = json.loads((path / "summary.json").read_text())["privacy"]["edges"][0]
    watch = Watch(path)
    sections(watch)
    assert asked(watch) == [4, 3, 2, 1]  # the newest first
    curve = accounted(watch)["privacy"]["curves"][0]
    assert curve["epsilon"] == sorted(curve["epsilon"])
    assert curve["epsilon"][-1] == stated["epsilon"]
    assert curve["releases"][-1] == stated["releases"]


@pytest.mark.slow
def test_the_epsilon_of_a_live_run_is_never_below_what_was_spent_nor_above_its_budget(tmp_path: Path) -> None:
    path = simulated(tmp_path, iterations=5, edges=1, algorithm={"tau_max": 1})
    stated = json.loads((path / "summary.json").read_text())["privacy"]["edges"][0]
    (path / "summary.json").unlink()
    watch = Watch(path)
    (lane,) = sections(watch)["fleet"]["edges"]
    assert lane["last_sequence"] == stated["releases"] == 5
    assert (lane["epsilon"], lane["epsilon_of"], lane["epsilon_pending"]) == (None, None, True)
    assert asked(watch) == [6, 10, 4, 3]  # the bound of now: one more may be on its way; and one for later
    (lane,) = accounted(watch)["fleet"]["edges"]
    assert (lane["epsilon"] > stated["epsilon"], lane["epsilon_of"]) == (True, 6)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["scenario"]["privacy"]["release_caps"] = [5]  # none is on its way: none may be
    (path / "manifest.json").write_text(json.dumps(manifest))
    watch.refresh()
    assert asked(watch) == [5]
    (lane,) = accounted(watch)["fleet"]["edges"]
    assert (lane["epsilon"] >= stated["epsilon"], lane["epsilon_of"]) == (True, 5)
    manifest["scenario"]["privacy"]["total_epsilon"] = stated["epsilon"]  # by Rényi DP 5 releases cost more
    (path / "manifest.json").write_text(json.dumps(manifest))
    (lane,) = accounted(watch)["fleet"]["edges"]
    assert (lane["epsilon"], lane["epsilon_exact"]) == (stated["epsilon"], False)


def test_what_is_not_shown_is_counted(tmp_path: Path) -> None:
    watch = Watch(write_live_run(tmp_path, "first", *(applied(t, t - 1, 0, t / 4) for t in range(1, 621))))
    page = sections(watch)
    assert (page["fleet"]["hidden"], page["traffic"]["hidden"]) == (120, 120)
    assert page["privacy"]["hidden_curves"] == 0  # none is known, so none is left out


@pytest.mark.slow
def test_memory_and_answers_stay_bounded_whatever_the_length() -> None:
    """So many edges and updates as fit, and the sections of a page grow no further."""
    sizes = []
    for updates in (20_000, 80_000):
        watch = Watch(Path("no-such-run"))
        watch.gathered.take(applied(t, t % 20, t % 7, t / 1000) for t in range(1, updates + 1))
        watch.gathered.take({"event": "evaluated", "t": t, "accuracy": t % 13 / 13} for t in range(updates))
        watch.refresh()
        sizes.append(len(watch.changed_since(-1)))
        kept = watch.gathered
        assert len(kept.events) + len(kept.last_updates) <= 2500
    assert max(sizes) < 200_000
    assert sizes[1] < 1.5 * sizes[0]


def test_who_is_silent_and_who_is_gone(tmp_path: Path) -> None:
    joined = [
        {"event": "edge_joined", "edge": k, "edge_id": f"edge-{k}", "t": 1, "noise": "none"} for k in range(3)
    ]
    updates = [applied(t, 0 if t > 20 else t % 2, 1, t / 2) for t in range(1, 60)]
    gone = {"event": "edge_gone", "edge": 2, "edge_id": "edge-2", "t": 59, "reason": "lost"}
    dumb = {"event": "edge_joined", "edge": 3, "edge_id": "edge-3", "t": 1, "noise": "none", "time": 4.5}
    path = write_live_run(tmp_path, "first", *joined, dumb, *updates, gone)
    page = sections(Watch(path))
    lanes = page["fleet"]["edges"]
    assert lanes[3]["silent"] == pytest.approx(59 / 2 - 4.5)  # it joined, and nothing came of it
    assert page["head"]["state"] == "live"
    assert lanes[0]["silent"] is None
    assert lanes[0]["pace"] == pytest.approx(2.0)
    assert lanes[1]["silent"] == pytest.approx((59 - 19) / 2)
    assert (lanes[2]["gone"], lanes[2]["applied"]) == ("lost", 0)


def test_events_are_found_by_kind_edge_and_text(tmp_path: Path) -> None:
    refused = {"event": "gradient_refused", "edge_id": "edge-9", "sequence": 4, "t": 3, "reason": "norm"}
    watch = Watch(write_live_run(tmp_path, "first", applied(1), applied(2, 1), refused))
    sections(watch)
    assert [row["number"] for row in watch.listed()["events"]] == [3, 2, 1]
    assert watch.listed(event="gradient_refused")["events"] == [{"number": 3, **refused}]
    assert [row["t"] for row in watch.listed(edge="1")["events"]] == [2]
    assert [row["t"] for row in watch.listed(edge="edge-0")["events"]] == [1]
    assert [row["t"] for row in watch.listed(text="NORM")["events"]] == [3]
    assert [row["number"] for row in watch.listed(before=2)["events"]] == [1]


def write_budgeted(folder: Path, budget: float, releases: int) -> Path:
    """Write a live run of one edge with these releases on record, whose scenario has a total budget."""
    joined = {"event": "edge_joined", "edge": 0, "edge_id": "a", "t": 1}
    noise = {"noise": "gaussian", "noise_multiplier": 1.0}
    updates = (applied(t, 0, 0, t / 4) for t in range(1, releases + 1))
    path = write_live_run(folder, "budgeted", joined | noise, *updates)
    scenario = {
        "batch_size": 5,
        "data": {"sampler": "poisson", "set": "mnist-5k"},
        "privacy": {"clipping": "per-sample", "scope": "all", "total_epsilon": budget, "total_delta": 1e-5},
    }
    manifest = {"scenario": scenario, "shard_sizes": [100]}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.fixture
def a_tenth_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each release cost 0.1."""
    monkeypatch.setattr("mapa.dashboard.watch.epsilon", lambda _, releases, *__: 0.1 * releases)


@pytest.mark.usefixtures("a_tenth_each")
@given(budget=st.integers(1, 300), spent=st.integers(1, 300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_no_view_ever_shows_more_than_the_budget_nor_less_than_was_spent_and_all_show_the_same(
    tmp_path_factory: pytest.TempPathFactory, budget: int, spent: int
) -> None:
    spent = min(spent, budget)  # a ledger permits no more
    watch = Watch(write_budgeted(tmp_path_factory.mktemp("runs"), 0.1 * budget + 0.05, spent))
    for _question in range(60):  # whatever is computed so far
        page = sections(watch)
        (lane,), curves = page["fleet"]["edges"], page["privacy"]["curves"]
        assert (lane["epsilon"] is None) is lane["epsilon_pending"] is page["privacy"]["pending"]
        if lane["epsilon"] is not None:
            assert 0.1 * spent <= lane["epsilon"] <= 0.1 * budget + 0.05
            assert not lane["epsilon_exact"]
            (curve,) = curves
            last = {key: curve[key][-1] for key in ("epsilon", "t", "releases")}
            assert last == {"epsilon": lane["epsilon"], "t": spent, "releases": spent}
            assert curve["epsilon"] == sorted(curve["epsilon"])
        missing = watch.missing()[:1]
        if not missing:
            assert lane["epsilon"] is not None
            break
        watch.answer(missing)
    else:
        pytest.fail("the questions do not end")


@pytest.mark.usefixtures("a_tenth_each")
def test_an_edge_that_passed_its_budget_is_shown_with_what_it_spent(tmp_path: Path) -> None:
    watch = Watch(write_budgeted(tmp_path, 1.35, 17))
    (lane,) = accounted(watch)["fleet"]["edges"]
    assert lane["epsilon"] == pytest.approx(1.9)
    assert lane["epsilon_of"] == 19


@pytest.mark.usefixtures("a_tenth_each")
def test_of_records_whose_number_nobody_knows_no_view_shows_more_than_the_budget(tmp_path: Path) -> None:
    """Their ε is accounted for the least number that takes part; the edge's own ledger keeps the budget."""
    path = write_budgeted(tmp_path, 1.0, 13)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["scenario"]["data"] |= {"set": "local", "schema": {"records_at_least": 100}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    watch = Watch(path)
    (lane,) = accounted(watch)["fleet"]["edges"]
    assert (lane["epsilon"], lane["epsilon_exact"]) == (1.0, False)
    edge = {"edge": 0, "releases": 13, "epsilon": 1.3, "shard_size_at_least": True}
    (path / "summary.json").write_text(json.dumps({"reason": "finished", "privacy": {"edges": [edge]}}))
    page = sections(watch)
    assert (page["fleet"]["edges"][0]["epsilon"], page["fleet"]["edges"][0]["epsilon_exact"]) == (1.0, False)
    assert page["privacy"]["curves"][0]["epsilon"][-1] == 1.0


def test_a_long_run_is_read_in_turns_and_encoded_once_for_all_viewers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK", 2000)
    monkeypatch.setattr(reading, "LONGEST", 1000)
    encoded: list[object] = []
    usual = watch_module._encoded
    monkeypatch.setattr(watch_module, "_encoded", lambda value: encoded.append(value) or usual(value))
    run = Followed(Watch(write_live_run(tmp_path, "first", *(applied(t) for t in range(1, 101)))))

    async def viewed() -> None:
        await run.look(0)
        assert run.watch.behind
        assert 0 < json.loads(run.watch.changed_since(-1))["head"]["updates"] < 100
        await run.look()
        viewers = [run.messages() for _ in range(2)]
        one, other = [await anext(viewer) for viewer in viewers]
        assert one == other
        assert json.loads(one.removeprefix(b"data: "))["head"]["updates"] == 100
        for viewer in viewers:
            await viewer.aclose()

    asyncio.run(viewed())
    assert len(encoded) == 2 * len(run.watch.encoded)  # once a look
    assert not run.watch.refresh()
    assert len(encoded) == 2 * len(run.watch.encoded)  # nothing was new
