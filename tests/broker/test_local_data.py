"""Records of edges' own and shards of a data set, over a real broker: one budget each, and nothing told about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloud.admission import ShardIndices
from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.mechanism.mechanism import Mechanism
from common.noise.gaussian import Gaussian
from edge.own_data import REGISTRY_VARIABLE
from mapa.brokers import Broker
from mapa.commands.ledger import ledger_command
from mapa.run_parts import OwnFiles
from tests.broker.conftest import Client
from tests.broker.testbed_support import PATIENCE, Testbed, open_testbed, scenario
from tests.local_support import local_values, write_csv

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

ON_EDGES = OwnFiles()  # the cloud has neither records nor test data
NORTH, SOUTH = 1371, 2153  # records: numbers that nothing else has


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, str(tmp_path / "registry.sqlite3"))


def stated(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    ledger_command(str(directory), as_json=True)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def numbers(value: object) -> set[float]:
    """Return every number in a JSON document."""
    if isinstance(value, dict):
        return set().union(*map(numbers, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(numbers, value)) if value else set()
    return {value} if isinstance(value, int | float) else set()


def edge(bed: Testbed, data: Path, *arguments: str, state: str = "state") -> Any:
    return bed.edge("--data", str(data), *arguments, state=state)


def log(bed: Testbed, number: int) -> str:
    return (bed.directory / f"edge-{number}.log").read_text()


def test_two_edges_with_two_files_of_different_length_train_and_their_ledgers_are_exact(
    mosquitto: Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    connect: Callable[..., Client],
) -> None:
    files = [write_csv(tmp_path / "north.csv", NORTH), write_csv(tmp_path / "south.csv", SOUTH, seed=1)]
    directory = tmp_path / "bed"
    values = local_values(iterations=80)
    heard = connect(mosquitto, "spy", "mapa/#").seen
    with open_testbed(mosquitto.address, directory, values, edges_at_least=2, own=ON_EDGES) as bed:
        for name, path in zip(("north", "south"), files, strict=True):
            edge(bed, path, state=name)
        summary = bed.finish()
        assert [child.returncode for child in bed.edges] == [0, 0], bed.logs()
        # the same file in another state directory: refused before anything is sent
        thief = edge(bed, files[0], state="other")
        assert thief.wait(PATIENCE) == 2
        assert str(directory / "north") in log(bed, 2)
        assert "--take-data" in log(bed, 2)
    assert summary["reason"] == "finished"
    assert (summary["evaluations"], summary["final_accuracy"], summary["best_accuracy"]) == ([], None, None)
    applied = {row["edge_id"]: row["applied"] for row in summary["edges"]}
    sizes = {}
    for name, records in (("north", NORTH), ("south", SOUTH)):
        document = stated(directory / name, capsys)
        [row] = document["edges"]
        assert row["releases"] - applied[row["edge_id"]] in (0, 1)  # one may be on its way at the halt
        assert row["shard_size"] == records
        kind = ReleaseKind(Mechanism(Gaussian(4.0), 8), records)
        assert document["epsilon"] == total([Spent(kind, row["releases"])], 1e-5).epsilon
        assert any("Totals are per name" in word for word in document["words"])
        sizes[row["edge_id"]] = document["epsilon"]
    for row in summary["privacy"]["edges"]:  # the cloud knows no n_k: what it states is an upper bound
        assert row["shard_size_at_least"]
        assert row["shard_size"] == 8
        assert row["epsilon"] > sizes[row["edge_id"]]
    records = directory / "records"
    told = [json.loads((records / "summary.json").read_text())]
    told += [json.loads(line) for line in (records / "events.jsonl").read_text().splitlines()]
    assert not numbers(told) & {NORTH, SOUTH}
    assert {topic.rsplit("/", 1)[1] for topic, _ in heard} >= {"hello", "welcome", "gradient"}
    assert all(b"north" not in payload and b"south" not in payload for _, payload in heard)


def test_a_row_more_in_a_second_run_is_the_same_account_and_both_stay_within_the_budget(
    mosquitto: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, budget = write_csv(tmp_path / "mine.csv", 400), ("--total-epsilon", "1")
    values = local_values(edges=1, iterations=30, batch_size=20)
    tested = OwnFiles(test=write_csv(tmp_path / "public.csv", 300, seed=5))
    with open_testbed(mosquitto.address, tmp_path / "one", values, run="one", own=tested) as bed:
        bed.directory = tmp_path
        edge(bed, mine, *budget)
        summary = bed.finish()
    assert 0 <= summary["final_accuracy"] <= 1  # the cloud has test data of its own
    before = stated(tmp_path / "state", capsys)
    assert 0 < before["epsilon"] < 1
    with mine.open("a") as stream:
        stream.write("50,2.5,1\n")
    values["iterations"] = 100_000
    with open_testbed(mosquitto.address, tmp_path / "two", values, run="two", own=ON_EDGES) as bed:
        bed.directory = tmp_path
        assert edge(bed, mine, *budget).wait(PATIENCE) == 0
        assert "the privacy budget is spent" in log(bed, 0)
    after = stated(tmp_path / "state", capsys)
    assert before["epsilon"] < after["epsilon"] <= 1
    assert after["method"] == "odometer"  # another n_k: another kind
    assert "Releases of earlier runs on the same records are included." in after["words"]
    assert [row["shard_size"] for row in after["edges"]] == [401]


def test_three_edges_of_a_process_share_one_file_and_one_budget(
    mosquitto: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = write_csv(tmp_path / "mine.csv", 400)
    values = local_values(edges=3, iterations=100_000, batch_size=20)
    with open_testbed(mosquitto.address, tmp_path / "run", values, own=ON_EDGES) as bed:
        bed.directory = tmp_path
        assert edge(bed, mine, "--count", "3", "--total-epsilon", "2").wait(PATIENCE) == 2
        said = log(bed, 0)
    assert said.count("no two edges release the same records at the same time") == 2
    assert said.count("the privacy budget is spent") == 1
    assert 0 < stated(tmp_path / "state", capsys)["epsilon"] <= 2


def test_a_cell_that_is_no_number_is_told_on_the_edge_and_nowhere_else(
    mosquitto: Broker, tmp_path: Path, connect: Callable[..., Client]
) -> None:
    path = write_csv(tmp_path / "secret-clinic.csv", 100)
    lines = path.read_text().splitlines()
    lines[57] = "nan,2.5,1"
    path.write_text("\n".join(lines) + "\n")
    directory = tmp_path / "bed"
    spy = connect(mosquitto, "spy", "mapa/#")
    with open_testbed(mosquitto.address, directory, local_values(edges=1), own=ON_EDGES) as bed:
        child = edge(bed, path)
        assert child.wait(PATIENCE) == 2
        bed.wait(lambda: any(account.left for account in bed.cloud.service.server.edges.values()))
        said = log(bed, 0)
        assert "row 57, column 'age'" in said
        [account] = bed.cloud.service.server.edges.values()
        assert account.left == "refused"
        bed.cloud.directory.events.flush()
    written = b"".join(p.read_bytes() for p in (directory / "records").rglob("*") if p.is_file())
    spy.wait(lambda: any(topic.endswith("/leave") for topic, _ in spy.seen))
    sent = b"".join(payload for _, payload in spy.seen)
    assert b"refused" in sent
    for word in (b"row 57", b"secret-clinic", b"finite", b"nan,"):
        assert word not in sent, word
        assert word not in written, word


def test_the_wrong_kind_of_run_is_refused_either_way(mosquitto: Broker, tmp_path: Path) -> None:
    mine = write_csv(tmp_path / "mine.csv", 100)
    with open_testbed(mosquitto.address, tmp_path / "bed", local_values(), own=ON_EDGES) as bed:
        assert bed.edge(state="none").wait(PATIENCE) == 2
        assert "take part with --data FILE" in log(bed, 0)
    with open_testbed(mosquitto.address, tmp_path / "bed-2", scenario(), run="two") as bed:
        assert edge(bed, mine).wait(PATIENCE) == 2
        assert "data.set = 'mnist-5k'" in log(bed, 0)


# -- shards of a data set: the records' total stays within the budget, whatever the cloud deals -------------

BUDGET = ("--count", "5", "--total-epsilon", "2")


def spend(broker: Broker, directory: Path, code: int, **changes: Any) -> str:
    """Let a fleet of five spend its budget in a run; return what it said."""
    values = scenario(**{"edges": 5, "iterations": 100_000, "privacy": {"noise_multiplier": 4.0}, **changes})
    with open_testbed(broker.address, directory / "run", values, edges_at_least=1) as bed:
        bed.directory = directory
        assert bed.edge(*BUDGET).wait(PATIENCE) == code, bed.logs()
    return (directory / "edge-0.log").read_text()


def test_five_edges_on_the_same_records_spend_one_budget(
    mosquitto: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = spend(mosquitto, tmp_path, 2, data={"partition": "shared", "sampler": "shuffled"}, batch_size=1000)
    assert said.count("no two edges release the same records at the same time") == 4
    assert said.count("the privacy budget is spent") == 1
    document = stated(tmp_path / "state", capsys)
    assert 0 < document["epsilon"] <= 2


def test_a_cloud_that_deals_one_shard_to_all_finds_one_edge(
    mosquitto: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardIndices, "deal", lambda *_: 0)
    said = spend(mosquitto, tmp_path, 2, data={"sampler": "shuffled"}, batch_size=200)
    assert said.count("no two edges release the same records at the same time") == 4
    document = stated(tmp_path / "state", capsys)
    assert 0 < document["epsilon"] <= 2


def test_another_cut_of_the_same_data_finds_what_is_left(
    mosquitto: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terms: dict[str, Any] = {
        "batch_size": 200,
        "data": {"sampler": "shuffled"},
        "privacy": {"noise_multiplier": 6.0},
    }
    first = scenario(edges=5, iterations=60, **terms)
    with open_testbed(mosquitto.address, tmp_path / "first", first, run="first", edges_at_least=5) as bed:
        bed.directory = tmp_path
        bed.edge("--count", "5", "--total-epsilon", "4")
        bed.finish()
    before = stated(tmp_path / "state", capsys)["epsilon"]
    assert 0 < before <= 4
    again = scenario(edges=2, iterations=100_000, **terms)
    with open_testbed(mosquitto.address, tmp_path / "second", again, run="second", edges_at_least=2) as bed:
        bed.directory = tmp_path
        assert bed.edge("--count", "2", "--total-epsilon", "4").wait(PATIENCE) == 0
    document = stated(tmp_path / "state", capsys)
    assert before < document["epsilon"] <= 4
    assert "different cuts of the same data" in document["composed_because"]
