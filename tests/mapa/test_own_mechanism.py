"""docs/your-own-mechanism.md: its parts run as printed; parts that state no cost, or a wrong one, are found."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError, LocalProtocolError
from common.mechanism.clipping import CLIPPINGS, Clipping
from common.mechanism.clippings.per_sample import PerSample
from common.mechanism.guarantee import Adjacency, Guarantee
from common.mechanism.local_work import LocalWork, Release
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import NONE, Amplification, Sampler, check_draw
from common.mechanism.samplers.poisson import Poisson
from common.mechanism.work.single_step import SingleStep
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import NoiseLaw
from common.options import option
from common.own_code import given_objects, only_code
from common.quantities import EdgeId, NoisyGradient, RunId, Vector
from common.scenario.scenario import parse_welcome
from edge.ledger import Account, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from experiments.audit.battery import battery
from experiments.audit.game import familywise, put_to_test
from mapa.scenario_files import load_scenario
from tests.core_support import small_scenario
from tests.edge.test_worker import X, worker
from tests.pages_support import blocks
from tests.program_support import run_mapa

PAGE = "your-own-mechanism.md"
FILES = ("my_sampler", "my_clipping", "my_law", "my_work")
SHORT = ("--set", "iterations=12", "--set", "evaluation.every=0", "--json")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The page's files in a folder, forgotten afterwards: another test has another folder."""
    for name, text in zip(FILES, blocks(PAGE, "python"), strict=True):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "my.toml").write_text(blocks(PAGE, "toml")[0], encoding="utf-8")
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["simulate", "run"])
def test_the_parts_of_the_page_train_are_charged_and_stated(project: Path, command: str) -> None:
    runs = ("--runs-dir", str(project / "runs"))
    done = run_mapa(command, str(project / "my.toml"), *SHORT, *runs)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout)
    assert (summary["reason"], summary["updates"]) == ("finished", 12)
    edge = summary["privacy"]["edges"][0]
    assert (edge["sampler"], edge["clipping"]) == ("my_sampler:FixedSize", "my_clipping:Smooth")
    assert edge["release"] == "my_law:Logistic, ε = 0.5"
    assert (edge["local_steps"], edge["charges"]) == (2, 2 * edge["releases"])
    most = max(row["charges"] for row in summary["privacy"]["edges"])  # edges are not equally fast
    assert summary["privacy"]["epsilon"] <= 0.25 * most  # ε/2 for each release, zero-out


@pytest.mark.slow
def test_parts_of_ones_own_keep_a_total_budget(project: Path) -> None:
    budget = ("--set", "privacy.total_epsilon=1.0", "--set", "iterations=100")
    runs = ("--runs-dir", str(project / "runs"))
    done = run_mapa("run", str(project / "my.toml"), *budget, "--json", *runs)
    assert done.returncode == 3, done.stderr[-2000:]
    summary = json.loads(done.stdout)
    assert summary["reason"] == "no-budget"
    assert 0 < summary["privacy"]["epsilon"] <= 1.0


@pytest.mark.slow
def test_the_audit_plays_the_parts_of_the_page_and_refutes_nothing(project: Path) -> None:
    done = run_mapa("audit", str(project / "my.toml"), "--no-one-run", "--rounds", "1500", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    games = json.loads(done.stdout)["games"]
    assert len(games) > 8
    assert {"one message of 2 local steps, canary in every batch"} <= {game["name"] for game in games}


def test_a_ledger_and_a_welcome_keep_parts_of_one_s_own(project: Path, tmp_path: Path) -> None:
    _, scenario = load_scenario(str(project / "my.toml"))
    kind = ReleaseKind(scenario.mechanism(scenario.law(0)), 100)
    assert kind.fields()["work"] == "my_work:Repeated"
    assert "softness" not in kind.fields()  # the cost does not depend on it
    account = Account(run=RunId("lab"), shard=ShardIdentity("d", "iid", 0), kind=kind)
    with SqliteLedger(tmp_path / "state", EdgeId("edge-a")) as ledger:
        ledger.open(account)
        ledger.debit(RunId("lab"), 1, b"g")
    with SqliteLedger(tmp_path / "state") as ledger:
        assert ledger.standing(RunId("lab")).account == account
        assert ledger.standing(RunId("lab")).charges == 2
    sent = {**scenario.for_edge(1), "seed": None}
    named = ["my_sampler:FixedSize", "my_clipping:Smooth", "my_law:Logistic", "my_work:Repeated"]
    assert parse_welcome(sent, allowed=named).mechanism(scenario.law(0)) == kind.mechanism
    for path in named:
        with pytest.raises(
            ConfigurationError, match=f"'{path}': the run asks for code of its own; .*--allow"
        ):
            parse_welcome(sent, allowed=[other for other in named if other != path])
    with only_code([]), pytest.raises(ConfigurationError, match="names code"):
        ReleaseKind.of_fields(kind.fields())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"stride": 2}}, r"data\.stride = 2: unknown key; allowed are set"),
        ({"data": {"stride": None}}, r"data\.stride = None: unknown key; allowed are set"),
        ({"local": {"stride": "s" * 1000}}, r"local\.stride = 's{119}…: unknown key"),
        ({"privacy": {"noise_multiplier": 1.0, "stride": 2}}, r"privacy\.stride = .*unknown key"),
        ({"local": {"stride": 2}}, r"local\.stride = 2: unknown key; allowed are work, steps, rate"),
        ({"data": {"sampler": "poison"}}, r"data\.sampler = 'poison': allowed are 'poisson', 'shuffled'"),
        ({"local": {"work": "no.such.module:Work"}}, r"local\.work = .*cannot import"),
        (
            {"privacy": {"noise_multiplier": 1.0, "clipping": "normalised", "stabiliser": -1}},
            r"privacy\.stabiliser = -1: must be a number, ≥ 0",
        ),
    ],
)
def test_a_wrong_part_or_option_is_named_with_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        small_scenario(**changes)


def own(base: type, frozen: bool = True, **members: Any) -> Any:
    """Return a class of the user's own: `base` with these members; one that is an option needs its type, too."""
    made = type("Own", (base,), {"__module__": __name__, "__qualname__": "Own", **members})
    return dataclass(frozen=True)(made) if frozen else made


OWN = f"{__name__}:Own"


def nan(*_: Any) -> float:
    return float("nan")


def nothing(*_: Any) -> None:
    return None


# ---- parts that state no cost, or not so that it can be counted


def divides(law: Any, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
    del mechanism
    return Guarantee(adjacency, epsilon=1 / (law.noise_multiplier - 1))


def endless(_: LocalWork) -> float:
    return float("inf")


@pytest.mark.parametrize(
    ("key", "part", "words"),
    [
        (
            "data.sampler",
            own(Sampler, draw=nothing),
            "does not state places, amplification, most_rows; define it",
        ),
        ("data.sampler", own(Poisson, amplification=lambda _: 0.5), "amplification = 0.5: must be one that"),
        ("data.sampler", PerSample, "must be a subclass of common.mechanism.sampler:Sampler"),
        (
            "privacy.clipping",
            own(PerSample, sensitivity_over_clip=nan),
            r"sensitivity_over_clip = nan \(zero-out\): must be a finite number",
        ),
        ("privacy.clipping", own(PerSample, frozen=False), "must be a frozen dataclass"),
        (
            "privacy.clipping",
            own(PerSample, block_form="sample"),
            "block_form = 'sample', extra = 0: must be one",
        ),
        (
            "privacy.clipping",
            own(
                PerSample,
                total_delta=option("of its own", 0.5, above=0, below=1),
                __annotations__={"total_delta": "float"},
            ),
            "option 'total_delta': the name is taken",
        ),
        (
            "local.work",
            own(LocalWork, releases=endless, message=nothing),
            "releases = inf: must be a whole number from 1 to 100",
        ),
        (
            "privacy.noise",
            own(Gaussian, guarantee=lambda *_: None),
            "guarantee = None: must be a Guarantee for",
        ),
        ("privacy.noise", own(Gaussian, guarantee=divides), "states no guarantee .ZeroDivisionError"),
    ],
)
def test_a_part_that_does_not_state_its_cost_is_refused_before_anything_is_sent(
    key: str, part: type, words: str
) -> None:
    table, _, name = key.partition(".")
    values = {"noise_multiplier": [2.0, 1.0]} if table == "privacy" else {}
    with given_objects({OWN: part}), pytest.raises(ConfigurationError) as refused:
        small_scenario(**{table: {**values, name: OWN}})
    assert f"{key} = {OWN!r}" in str(refused.value)
    with pytest.raises(ConfigurationError, match=words):
        raise refused.value


def test_a_law_must_state_one_finite_guarantee() -> None:
    for figures in ({"epsilon": float("nan")}, {"noise_multiplier": 0.0}, {"epsilon": float("inf")}):
        with pytest.raises(ConfigurationError, match="a finite number greater than 0"):
            Guarantee(Adjacency.ZERO_OUT, **figures)
    with pytest.raises(ConfigurationError, match="states one of them"):
        Guarantee(Adjacency.ZERO_OUT, epsilon=1.0, noise_multiplier=1.0)


# ---- parts that state less than they cost


def favours(_: Sampler, streams: Any, edge: int, n: int, shard_size: int, batch_size: int) -> Any:
    """Draw every record twice as often."""
    return Poisson().draw(streams, edge, n, shard_size, min(2 * batch_size, shard_size))


def generous(_: Clipping, gradients: Any, bound: float, batch_size: int, norm: Any) -> Any:
    return PerSample().clip(gradients, 3 * bound, batch_size, norm)


def faint(law: Any, sensitivity: float, dimension: int, rng: np.random.Generator) -> Any:
    return Laplace(law.epsilon).draw(sensitivity / 3, dimension, rng)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(Gaussian(1.0), 4, sampler=own(Poisson, draw=favours)()),
        Mechanism(Gaussian(1.0), 4, clipping=own(PerSample, clip=generous)()),
        Mechanism(own(Laplace, draw=faint)(2.0), 4),
    ],
    ids=["sampler", "clipping", "law"],
)
def test_a_part_that_states_less_than_it_costs_is_refuted_by_the_audit(mechanism: Mechanism) -> None:
    games = sorted(battery(mechanism, shard_size=16, dimension=16, rounds=3000), key=lambda game: game.cost)
    assert put_to_test(games, alpha=familywise(0.95, len(games)), seed=3)[-1].violated


def test_a_work_gets_no_more_releases_than_it_is_charged_for() -> None:
    def greedy(_: LocalWork, x: Vector, release: Release, *__: float) -> NoisyGradient:
        return [release(x) for _ in range(3)][-1]

    work = own(LocalWork, releases=lambda _: 2, message=greedy)()
    with pytest.raises(LocalProtocolError, match="more releases than the 2 it is charged for"):
        worker(work=work).gradient(X, 0.4, 1)


CHANGES = {
    "shorter": lambda honest: honest[:-1],
    "numpy scalar": lambda honest: honest[0],
    "float": lambda honest: float(honest[0]),
    "two axes": lambda honest: honest[None],
    "list": lambda honest: honest.tolist(),
    "integers": lambda honest: honest.astype(np.int64),
    "NaN": lambda honest: honest * np.nan,
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    ("key", "kind", "base", "method"),
    [
        ("privacy.clipping", "clipping", PerSample, "clip"),
        ("privacy.noise", "law", Gaussian, "draw"),
        ("local.work", "work", SingleStep, "message"),
    ],
)
def test_what_an_own_part_makes_is_released_only_where_it_is_a_finite_vector(
    key: str, kind: str, base: type, method: str, name: str
) -> None:
    def part(change: Any) -> Any:
        made = own(base, **{method: lambda *given: change(getattr(base, method)(*given))})
        return made(1.0) if kind == "law" else made()

    assert worker(**{kind: part(np.copy)}).gradient(X, 0.4, 1).shape == X.shape
    with pytest.raises(
        LocalProtocolError, match=f"(?s){key} = .*: must be one array of {X.size} finite floats"
    ):
        worker(**{kind: part(CHANGES[name])}).gradient(X, 0.4, 1)


def test_a_part_that_redefines_what_it_does_has_no_block_form_of_the_class_it_inherits_from() -> None:
    assert (PerSample.block_form, own(PerSample, clip=generous).block_form) == ("samples", "")
    assert own(Gaussian, draw=faint).draw_block.__func__ is NoiseLaw.draw_block.__func__  # type: ignore[attr-defined]
    assert own(Poisson, draw=favours).draw_block is Sampler.draw_block
    assert own(PerSample, sensitivity_over_clip=nan).block_form == "samples"


def test_a_law_beside_the_scenario_may_be_named_by_set_alone(project: Path) -> None:
    text = (project / "my.toml").read_text().partition("[privacy]")[0]
    lines = [line for line in text.splitlines() if "my_" not in line and "local." not in line]
    plain = [*lines, "[privacy]", "epsilon = 0.5", 'noise = "laplace"']
    (project / "plain.toml").write_text("\n".join(plain))
    _, scenario = load_scenario(str(project / "plain.toml"), ["privacy.noise=my_law:Logistic"])
    assert scenario.privacy.noise == "my_law:Logistic"
    assert scenario.law(0) is not None


# ---- parts whose cost is not what a ledger keeps


def test_a_neutral_option_may_not_change_the_cost_and_has_a_default() -> None:
    def amplified(clipping: Any, *asked: Any) -> float:
        return float(clipping.factor * PerSample().sensitivity_over_clip(*asked))

    factor = {
        "factor": option("how far a record moves the mean", 1.0, neutral=True, at_least=1.0, at_most=100.0),
        "__annotations__": {"factor": "float"},
    }
    amplifying = own(PerSample, sensitivity_over_clip=amplified, **factor)
    assert Mechanism(Gaussian(1.0), 4, clipping=amplifying())
    with pytest.raises(ConfigurationError, match="no neutral option changes it"):
        Mechanism(Gaussian(1.0), 4, clipping=amplifying(factor=20.0))
    without = own(PerSample, **{**factor, "factor": option("", neutral=True)})
    with given_objects({OWN: without}), pytest.raises(ConfigurationError, match="'factor' is neutral, so"):
        CLIPPINGS.describe(OWN)


def test_a_cost_is_the_same_each_time_it_is_asked_for() -> None:
    asked = count()
    flaky = own(Poisson, places=lambda *_: 1 + next(asked) % 2, amplification=lambda _: NONE)
    with pytest.raises(ConfigurationError, match=r"data\.sampler: places: .* are stated for the same part"):
        Mechanism(Gaussian(1.0), 4, sampler=flaky())


@pytest.mark.parametrize(
    "rows",
    [
        np.array([0, 0]),
        np.array([-1]),
        np.array([20]),
        np.array([0.0]),
        np.array([True] * 20),
        [1],
        np.zeros((1, 1), int),
    ],
)
def test_a_draw_beyond_what_the_sampler_states_is_never_released(rows: Any) -> None:
    with pytest.raises(LocalProtocolError, match=r"data\.sampler = '.*': drew"):
        check_draw(Poisson(), rows, 20, 4)
    check_draw(Poisson(), np.array([3, 19]), 20, 4)
    check_draw(Poisson(), np.array([], np.int64), 20, 4)


def test_an_epoch_has_as_many_batches_as_are_disjoint_and_one_without_epochs() -> None:
    mechanism = Mechanism(Gaussian(1.0), 4, sampler=own(Poisson, batches_per_epoch=lambda *_: 1000)())
    with pytest.raises(
        ConfigurationError, match="batches_per_epoch = 1000: must be a whole number from 1 to 1"
    ):
        ReleaseKind(mechanism, 100)


@pytest.mark.parametrize("stated", ["least_records", "batches_per_epoch"])
def test_a_sampler_that_cannot_state_its_batches_is_refused(stated: str) -> None:
    for answer, said in ((nothing, f"{stated} = None"), (lambda *_: {}["b"], "does not state its cost")):
        with pytest.raises(ConfigurationError, match=said):
            ReleaseKind(Mechanism(Gaussian(1.0), 4, sampler=own(Poisson, **{stated: answer})()), 100)


@pytest.mark.parametrize(("sampled", "largest"), [(True, 0), (True, 2.5), (False, 20)])
def test_a_truncation_that_no_accountant_knows_is_refused(sampled: bool, largest: Any) -> None:
    with pytest.raises(ConfigurationError, match="largest must be a whole number"):
        Amplification(sampled=sampled, largest=largest)
