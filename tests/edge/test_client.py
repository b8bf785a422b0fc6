"""One edge against a cloud that says whatever the test has it say."""

from __future__ import annotations

from typing import Any

import pytest

from common.accounting.releases import Budget
from common.errors import DataUnavailableError, LedgerUnavailableError, MapaError, RemoteProtocolError
from common.messages import Presence, Refuse
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.law import NoiseLaw
from common.quantities import RunId
from common.wire.codec import encode
from common.wire.topics import EdgeTopic, edge_topic, presence_topic
from edge.client import EdgeClient, spending_text
from edge.ledger import BudgetExhausted, Done, Ledger, raise_failure
from edge.policy import OperatorPolicy
from edge.session import EXIT_FAILED, EXIT_REFUSED, SessionEffect
from edge.worker import EdgeWorker
from tests.common.test_noise_port import Mixed
from tests.core_support import small_scenario
from tests.edge_support import CLOUD, HOUR, LIFE, RUN, Stage, plenty, private_scenario

# -- models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sensitivity", [0.0, 5e-324, 1e-10, 1e10, 1e300])
@pytest.mark.parametrize("clipping", ["per-sample", "normalised", "batch-mean"])
def test_a_sensitivity_under_which_clipping_cannot_be_trusted_is_dropped_and_counted(
    sensitivity: float, clipping: str
) -> None:
    privacy = {"noise": "gaussian", "noise_multiplier": 1.0, "clipping": clipping}
    stage = Stage(private_scenario(privacy=privacy))
    stage.welcome()
    stage.release(2)
    with pytest.raises(RemoteProtocolError, match=r"bΔS/2 = .*from 1e-09 to 1e\+09"):
        stage.model(sensitivity)
    assert stage.edge.dropped["model"] == 1
    assert (stage.ledger.last_sequence(RUN), stage.pushed, stage.edge.exit_code) == (2, 2, None)
    stage.release(1)  # the service goes on
    assert stage.ledger.last_sequence(RUN) == 3


def test_without_noise_any_sensitivity_is_taken_since_none_is_used() -> None:
    stage = Stage(private_scenario(algorithm={"name": "asgd"}))
    stage.welcome()
    stage.model(0.0)
    assert stage.ledger.last_sequence(RUN) == 1


def test_an_edge_whose_gradient_is_not_finite_tells_the_cloud_that_it_goes() -> None:
    stage = Stage(small_scenario(algorithm={"name": "asgd"}, model={"regularization": 10.0}))
    stage.welcome()
    stage.model(value=3e38)
    assert stage.edge.exit_code == EXIT_FAILED
    assert stage.leaves == ["failed"]
    assert stage.ledger.last_sequence(RUN) == 0


def test_an_edge_without_memory_for_a_gradient_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.welcome()

    def full(*_: object) -> None:
        raise MemoryError("40 GiB")

    monkeypatch.setattr(EdgeWorker, "receive", full)
    stage.model()
    assert (stage.edge.exit_code, stage.leaves) == (EXIT_FAILED, ["failed"])
    assert stage.ledger.last_sequence(RUN) == 0


@pytest.mark.parametrize("acknowledged", [3, 2**60])
def test_a_model_that_acknowledges_what_was_never_debited_is_dropped_and_counted(acknowledged: int) -> None:
    stage = Stage()
    stage.welcome()
    stage.release(2)
    with pytest.raises(RemoteProtocolError, match=f"acknowledged = {acknowledged}: must be at most 2"):
        stage.model(acknowledged=acknowledged)
    assert stage.edge.dropped["model"] == 1
    assert (stage.ledger.standing(RUN).charges, stage.pushed) == (2, 2)
    stage.model(acknowledged=2)
    assert stage.ledger.last_sequence(RUN) == 3


# -- welcomes -----------------------------------------------------------------------------------------

LAW = "tests.common.test_noise_port:Mixed"
POISSON = {"sampler": "poisson"}
BUDGET = OperatorPolicy(budget=Budget(2.0, 1e-5))
# What tests/edge/test_policy.py shows of the decision alone, here through the shell.
REFUSED: list[tuple[OperatorPolicy, dict[str, Any], str]] = [
    (OperatorPolicy(parameters={"epsilon": 0.2}), {"algorithm": {"name": "asgd"}}, "work.private = False"),
    (
        OperatorPolicy(allowed=frozenset({"another:Law"})),
        {"privacy": {"noise": LAW, "scale": 1.0, "share": 0.5}},
        f"privacy.noise = {LAW!r}: the run asks for code of its own; allow it with --allow {LAW}",
    ),
    (BUDGET, {"seed": 7, "data": POISSON}, "seed = 7: whoever knows a run's seed can subtract its noise"),
    (OperatorPolicy(), {"batch_size": 241}, "batch_size = 241: must be at most the 240 records"),
    (
        OperatorPolicy(),
        {"data": {"partition": "label", "labels_per_edge": 61}},
        "data.labels_per_edge = 244: must be at most",
    ),
]


@pytest.mark.parametrize(("policy", "changes", "words"), REFUSED)
def test_a_welcome_that_the_operator_does_not_permit_ends_the_edge_before_an_account_is_opened(
    policy: OperatorPolicy, changes: dict[str, Any], words: str
) -> None:
    stage = Stage(private_scenario(**{"seed": None, **changes}), Ledger(accountant=plenty), policy)
    stage.welcome()
    assert (stage.edge.exit_code, stage.leaves) == (EXIT_REFUSED, ["refused"])
    assert words in stage.said[-1]
    assert stage.ledger.standings() == []


@pytest.mark.parametrize(
    ("policy", "privacy", "law"),
    [
        (
            OperatorPolicy(parameters={"epsilon": 0.5}),
            {"noise": "gaussian", "noise_multiplier": 8.0},
            GammaNorm(0.5),
        ),
        (
            OperatorPolicy(allowed=frozenset({LAW})),
            {"noise": LAW, "scale": 1.0, "share": 0.5},
            Mixed(1.0, 0.5),
        ),
        (OperatorPolicy(), {"noise": "exponential-norm", "epsilon": 1.0}, ExponentialNorm(1.0)),
    ],
)
def test_an_edge_noises_by_its_operators_word_or_as_the_run_does_and_the_hello_says_so(
    policy: OperatorPolicy, privacy: dict[str, Any], law: NoiseLaw
) -> None:
    stage = Stage(small_scenario(seed=None, privacy=privacy, data=POISSON), policy=policy)
    stage.welcome()
    assert stage.edge.preparation is not None
    assert stage.edge.preparation.worker.mechanism.law == law
    assert stage.hellos[0].noise == (law.name if policy.parameters else None)


def test_records_for_which_the_operator_set_a_budget_are_in_no_run_with_a_seed() -> None:
    ledger = Ledger(accountant=plenty)
    Stage(
        private_scenario(seed=None), ledger, OperatorPolicy(budget=Budget(2.0, 1e-5)), RunId("first")
    ).welcome()
    later = Stage(ledger=ledger)
    later.welcome(seed=8)  # another cut of the same data set
    assert later.edge.exit_code == EXIT_REFUSED
    assert "has set a budget for these records before" in later.said[-1]
    allowed = Stage(ledger=ledger, policy=OperatorPolicy(allow_seed=True), run=RunId("allowed"))
    allowed.welcome(seed=8)
    assert allowed.edge.preparation is not None


@pytest.mark.parametrize(
    "failure", [DataUnavailableError("usps is not here"), MapaError("the accountant failed"), MemoryError()]
)
def test_a_welcome_that_cannot_be_followed_here_ends_this_edge_and_not_its_process(
    failure: BaseException,
) -> None:
    stage = Stage(failure=failure)
    stage.welcome()
    assert (stage.edge.exit_code, stage.leaves) == (EXIT_REFUSED, ["refused"])
    assert (str(failure) or "not enough memory") in stage.said[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"index": 2}, "index = 2, not 0"),
        ({"edges": 9}, "edges = 9, not 4"),
        ({"seed": 8}, "seed = 8, not 7"),
        ({"scenario": private_scenario(iterations=61).for_edge(0)}, "another scenario"),
    ],
)
def test_a_later_welcome_with_other_terms_ends_the_edge(changes: dict[str, Any], words: str) -> None:
    """A cloud that was started anew may have dealt this shard to somebody else."""
    stage = Stage()
    stage.welcome()
    stage.release(3)
    stage.welcome(last_sequence=3)
    assert stage.edge.exit_code is None
    pushed = stage.pushed
    stage.welcome(**{"last_sequence": 2, **changes})
    assert stage.edge.exit_code == EXIT_REFUSED
    assert words in stage.said[-1]
    assert (stage.leaves, stage.pushed) == (["refused"], pushed)


def test_a_welcome_for_other_shards_than_its_scenario_s_is_refused_before_they_are_dealt() -> None:
    stage = Stage()
    stage.welcome(edges=2**40)
    assert stage.edge.exit_code == EXIT_REFUSED
    assert f"edges = {2**40}: must be 4" in stage.said[-1]


@pytest.mark.parametrize("last_sequence", [1, 2**47, 2**62])
def test_a_welcome_that_knows_of_releases_never_debited_is_dropped_and_nothing_is_charged(
    last_sequence: int,
) -> None:
    stage = Stage()
    with pytest.raises(RemoteProtocolError, match=f"last_sequence = {last_sequence}: must be at most 0"):
        stage.welcome(last_sequence=last_sequence)
    assert stage.edge.dropped["welcome"] == 1
    stage.welcome()
    stage.release(3)
    with pytest.raises(RemoteProtocolError, match="must be at most 3"):
        stage.welcome(last_sequence=last_sequence + 3)
    assert stage.ledger.standing(RUN).charges == 3
    stage.welcome(last_sequence=3)
    stage.release(1)
    assert (stage.ledger.last_sequence(RUN), stage.pushed) == (4, 4)


def test_a_welcome_to_an_older_hello_has_the_gradient_since_then_sent_again() -> None:
    """The cloud answered before it got the gradient, or the edge was killed in between."""
    stage = Stage()
    stage.welcome()
    stage.release(2)
    stage.edge.on_connected()
    stage.welcome(last_sequence=1)
    first, second, again = stage.published(EdgeTopic.GRADIENT)
    assert first != second == again
    restarted = Stage(ledger=stage.ledger)
    restarted.welcome(last_sequence=1)
    assert restarted.published(EdgeTopic.GRADIENT) == [second]
    restarted.model(acknowledged=2)
    assert restarted.ledger.standing(RUN).charges == 3


def test_a_scenario_s_budget_binds_no_other_run_before_something_was_released_under_it() -> None:
    """Else one hostile welcome would end this edge's part in every later run."""
    ledger = Ledger(accountant=lambda budget, kind, spent: 0 if budget.epsilon < 1e-3 else 500)  # noqa: ARG005
    tiny = {"noise": "gaussian", "noise_multiplier": 1.0, "total_epsilon": 1e-9}
    Stage(private_scenario(seed=None, privacy=tiny), ledger).welcome()
    assert ledger.standing(RUN).exhausted
    honest = RunId("honest")
    stage = Stage(private_scenario(seed=None), ledger, OperatorPolicy(budget=Budget(2.0, 1e-5)), honest)
    stage.welcome()
    stage.release(1)
    assert (ledger.standing(honest).cap, ledger.last_sequence(honest)) == (500, 1)


# -- the shard that the ledger belongs to -------------------------------------------------------------


def released(ledger: Ledger, run: str, index: int, **changes: Any) -> None:
    """Have the edge of this ledger take part in an earlier run."""
    stage = Stage(private_scenario(**changes), ledger, run=RunId(run))
    stage.welcome(index)
    stage.release(2)
    assert ledger.last_sequence(RunId(run)) == 2


def test_a_hello_asks_for_the_shard_that_the_ledger_has_charged_and_asks_again_for_it() -> None:
    ledger = Ledger()
    released(ledger, "first", 3)
    stage = Stage(ledger=ledger)
    stage.welcome(0)
    assert [hello.index for hello in stage.hellos] == [3, 3]
    stage.welcome(3)
    stage.release(1)
    assert (ledger.last_sequence(RUN), ledger.standing(RUN).account.shard.index) == (1, 3)


def test_an_edge_asks_once_for_its_shard_of_the_run_s_cut_and_takes_no_other() -> None:
    """Which data a run is about is in the welcome: the first hello may name the shard of other data."""
    ledger = Ledger()
    released(ledger, "first", 3)
    released(ledger, "other-cut", 1, seed=11)
    stage = Stage(ledger=ledger)
    stage.welcome(1)
    assert [hello.index for hello in stage.hellos] == [1, 3]
    assert (stage.edge.preparation, stage.edge.exit_code) == (None, None)
    stage.welcome(1)
    assert stage.edge.exit_code == EXIT_REFUSED
    assert "shard 1 " in stage.said[-1]
    assert "holds shard 3" in stage.said[-1]
    assert stage.leaves == ["refused"]


def test_an_operator_may_replace_a_budget() -> None:
    scenario = small_scenario(seed=None, privacy={"noise": "gamma-norm", "epsilon": 0.1})  # 0.25 a release
    ledger, larger = Ledger(), Budget(1.5, 0.0)
    first = Stage(scenario, ledger, OperatorPolicy(budget=Budget(1.0, 0.0)))
    first.welcome()
    first.release(4)
    for replaced, cap in ((False, 0), (True, 2)):
        run = RunId(f"replaced-{replaced}")
        stage = Stage(scenario, ledger, OperatorPolicy(budget=larger, replace_budget=replaced), run)
        stage.welcome()
        assert ledger.standing(run).cap == cap


# -- a ledger that was lost ---------------------------------------------------------------------------


def lost(stage: Stage, known: int = 5) -> None:
    words = f"the ledger has 0 releases, but {known} were applied"
    answered = (stage.edge.nonce, stage.edge.session.hellos)
    refuse = Refuse(stage.edge.edge_id, "ledger-lost", words, *answered, last_sequence=known)
    stage.edge.on_answer("welcome", encode(refuse))
    stage.broker.settle()


def test_an_edge_with_a_name_takes_no_other_when_its_ledger_is_lost() -> None:
    stage = Stage(renewable=False)
    name = stage.edge.edge_id
    lost(stage)
    assert (stage.edge.exit_code, stage.edge.edge_id) == (EXIT_REFUSED, name)
    assert len(stage.channels) == 1
    assert "Restore" in stage.said[-1]
    assert f"another host takes part as {name}" in stage.said[-1]
    assert "--accounts" in stage.said[-1]
    assert "mapa ledger charge" not in stage.said[-1]  # there is no account to charge


def test_an_older_copy_of_a_ledger_does_not_go_on_under_another_id() -> None:
    ledger = Ledger()
    released(ledger, RUN, 0)
    stage = Stage(ledger=ledger)
    name = stage.edge.edge_id
    lost(stage)
    assert (stage.edge.exit_code, stage.edge.edge_id) == (EXIT_REFUSED, name)
    command = f"mapa ledger charge --state state --run {RUN} --edge {name} --through 6"
    for words in ("older copy", "it has 2 releases", "it has got 5", "not authenticated"):
        assert words in stage.said[-1]
    assert command in stage.said[-1].splitlines()  # by itself on its line, to be copied
    assert ledger.standing(RUN).charges == 2  # a forged refusal burns nothing


@pytest.mark.parametrize(("known", "through"), [(10**9 - 1, 10**9), (10**9, None), (2**62, None)])
def test_only_what_mapa_ledger_charge_takes_is_proposed(known: int, through: int | None) -> None:
    ledger = Ledger()
    released(ledger, RUN, 0)
    stage = Stage(ledger=ledger)
    lost(stage, known)
    assert stage.edge.exit_code == EXIT_REFUSED
    if through is None:
        assert "mapa ledger charge" not in stage.said[-1]
        assert "forged or wrong" in stage.said[-1]
    else:
        assert stage.said[-1].splitlines()[1].endswith(f"--through {through}")


@pytest.mark.parametrize("budget", [None, Budget(1.0, 0.0)])
def test_a_lost_ledger_goes_on_as_a_newcomer_unless_its_operator_keeps_a_budget(
    budget: Budget | None,
) -> None:
    stage = Stage(policy=OperatorPolicy(budget=budget))
    name = stage.edge.edge_id
    lost(stage)
    assert (stage.edge.exit_code is None) == (stage.edge.edge_id != name) == (budget is None)


def test_an_older_copy_that_was_charged_goes_on_after_what_others_released() -> None:
    ledger = Ledger()
    released(ledger, RUN, 0)
    lost(Stage(private_scenario(), ledger))
    account = ledger.account(RUN)
    assert account is not None
    ledger.open(account)
    ledger.charge(RUN, 6)
    stage = Stage(private_scenario(), ledger)
    assert [hello.last_sequence for hello in stage.hellos] == [6]
    stage.welcome(0, last_sequence=5)  # the sixth never left, or was lost
    assert stage.published(EdgeTopic.GRADIENT) == []
    stage.model(acknowledged=5)
    assert (ledger.last_sequence(RUN), ledger.standing(RUN).charges) == (7, 7)
    assert len(stage.published(EdgeTopic.GRADIENT)) == 1


# -- time and connections -----------------------------------------------------------------------------


def test_an_edge_waits_for_days() -> None:
    stage = Stage()
    stage.welcome()
    stage.release(1)
    stage.broker.advance(20 * HOUR)
    assert stage.edge.exit_code is None
    pushed = stage.pushed
    stage.broker.advance(HOUR)
    assert stage.pushed == pushed + 60  # one a minute


def test_hellos_do_not_pile_up_while_the_broker_is_away() -> None:
    stage = Stage()
    stage.channels[0].lose()
    stage.broker.advance(HOUR)
    stage.channels[0].restore()
    stage.broker.settle()
    assert len(stage.hellos) == 2  # the first, and that of the new connection


def test_an_edge_that_leaves_while_its_link_is_set_up_stays_away() -> None:
    stage = Stage(private_scenario(links=[{"delay_ms": 5.0}]))
    stage.edge.on_answer("welcome", encode(stage.admission()))
    assert stage.edge.preparation is not None
    stage.edge.leave("shutdown")
    stage.broker.advance(HOUR)
    assert [channel.closed for channel in stage.channels] == [True]


@pytest.mark.parametrize("connecting", [False, True])
@pytest.mark.parametrize("code", [0, EXIT_FAILED])
def test_an_edge_that_ends_before_its_first_connection_says_nothing_and_ends_once(
    code: int, connecting: bool
) -> None:
    stage = Stage(started=False)
    if connecting:
        stage.edge.start()
    for _ in range(2):  # a signal may follow an end
        if code == 0:
            stage.edge.leave("shutdown")
        else:
            stage.edge.give_up(code, "no connection")
    stage.broker.advance(HOUR)
    assert (stage.edge.exit_code, stage.stops) == (code, [code])
    assert (stage.hellos, stage.leaves) == ([], [])
    assert all(channel.closed for channel in stage.channels)


@pytest.mark.parametrize(
    ("ends_with", "reason", "code"),
    [
        (BudgetExhausted("spent"), "budget", 0),
        (LedgerUnavailableError("disk is full"), "failed", EXIT_FAILED),
    ],
)
def test_a_leave_waits_for_the_broker_and_for_the_cloud_behind_it(
    ends_with: MapaError, reason: str, code: int
) -> None:
    class Lost(Ledger):
        def debit(self, *_: object) -> None:
            stage.broker.retained.clear()  # the broker stops at that moment, and forgets
            stage.channels[0].lose()
            raise ends_with

    stage = Stage(ledger=Lost())
    stage.welcome()
    stage.model()
    assert (stage.edge.exit_code, stage.stops, stage.leaves) == (code, [code], [])
    assert not stage.channels[0].closed
    stage.channels[0].restore()
    stage.broker.advance(1.0)
    assert stage.leaves == []  # the cloud is not back yet: nobody would hear it
    stage.broker.route(presence_topic(RUN), encode(Presence(True, CLOUD, LIFE)), retain=True)
    stage.broker.advance(1.0)
    assert stage.leaves == [reason]
    assert stage.channels[0].closed
    assert stage.published(EdgeTopic.GRADIENT) == []


@pytest.mark.parametrize("told", [1, 2])
def test_nobody_waits_for_ever_for_a_broker_to_say_leave(told: int) -> None:
    stage = Stage()
    stage.welcome()
    stage.channels[0].lose()
    stage.edge.leave("shutdown")
    for _ in range(told - 1):
        stage.edge.hurry()
    stage.broker.advance(0.0 if told == 2 else 8.0)
    assert stage.channels[0].closed
    assert stage.leaves == []


def test_a_connection_that_comes_back_while_a_gradient_is_made_is_told_in_its_turn() -> None:
    """Its hello names the gradient that was debited meanwhile; the next welcome calls for its bytes."""
    stage = Stage()

    class Interrupted(Ledger):
        def debit(self, run: RunId, sequence: int, payload: bytes, done: Done = raise_failure) -> None:
            stage.edge.on_connected()
            super().debit(run, sequence, payload, done)

    stage = Stage(ledger=Interrupted())
    stage.welcome()
    stage.model()
    assert [hello.last_sequence for hello in stage.hellos] == [0, 1]
    assert stage.published(EdgeTopic.GRADIENT) == []
    stage.welcome()
    assert [payload for _, payload in stage.ledger.pending(RUN)] == stage.published(EdgeTopic.GRADIENT)


def test_no_effect_is_performed_inside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[str] = []
    performed: list[str] = []
    perform = EdgeClient._perform

    def watched(client: EdgeClient, effect: SessionEffect) -> None:
        assert under_way == []
        under_way.append(type(effect).__name__)
        perform(client, effect)
        performed.append(under_way.pop())

    monkeypatch.setattr(EdgeClient, "_perform", watched)
    stage = Stage()
    lost(stage)
    stage.welcome()
    stage.release(2)
    stage.edge.leave("shutdown")
    made = ["MakeGradient", "PushOutbox"]
    joined = ["SayHello", "RenewIdentity", "Reroute", "SayHello", "Prepare"]
    assert performed == [*joined, *made, *made, "SayLeave", "Stop"]


# -- what the operator is told ------------------------------------------------------------------------


def test_an_edge_says_once_what_it_joins_with() -> None:
    stage = Stage(
        private_scenario(seed=None),
        Ledger(accountant=plenty),
        OperatorPolicy(budget=Budget(2.0, 1e-5)),
    )
    assert stage.edge.progress == f"waiting for the welcome of run {RUN!r}"
    stage.welcome()
    stage.welcome()  # of a cloud that came back: the same terms
    assert stage.notes == [
        f"{stage.edge.edge_id}: joined run {RUN!r}: 60 records, 0 releases made, budget ε = 2 at δ = 1e-05: 0 of 500"
        " charges spent"
    ]
    assert stage.said == []
    stage.release(3)
    assert stage.edge.progress == spending_text(stage.edge.standing)
    assert "3 releases made" in stage.edge.progress
    assert "3 of 500 charges" in stage.edge.progress


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": {"name": "asgd"}}, "no noise: gradients leave as they are"),
        ({"privacy": {"noise": "exponential-norm", "epsilon": 1.0}}, "singular at 0"),
        ({"privacy": {"noise": "gaussian", "noise_multiplier": 1e-6}}, "as good as none"),
        ({"seed": 7}, "seed = 7"),
        ({}, None),
    ],
)
def test_an_edge_says_plainly_where_what_it_releases_is_not_protected(
    changes: dict[str, Any], words: str | None
) -> None:
    stage = Stage(private_scenario(**{"seed": None, **changes}))
    stage.welcome()
    stage.release(2)
    assert "no budget (--total-epsilon sets one)" in stage.notes[0]
    told = [line for line in stage.said if "NOT PROTECTED" in line]
    assert len(told) == (0 if words is None else 1)
    assert words is None or words in told[0]


def test_a_cloud_that_is_away_or_was_never_there_is_waited_for_in_words() -> None:
    stage = Stage(started=False)
    stage.broker.retained.clear()
    stage.edge.start()
    stage.broker.settle()
    assert "none has been there yet; is the name right?" in stage.edge.progress
    for online, words in ((True, "waiting for the welcome"), (False, "to come back")):
        stage.broker.route(presence_topic(RUN), encode(Presence(online, CLOUD, LIFE)), retain=True)
        stage.broker.settle()
        assert words in stage.edge.progress
    stage.channels[0].lose()
    assert stage.edge.progress == "waiting for a connection to the broker"


@pytest.mark.parametrize("answered", [0, 1])
def test_only_a_size_that_never_passed_is_blamed_for_silence(answered: int) -> None:
    stage = Stage(private_scenario(seed=None))
    stage.welcome()
    stage.release(1 + answered)
    stage.broker.advance(60.0)
    (silence,) = [line for line in stage.said if "no answer to a gradient" in line]
    assert "the connection is cut" in silence
    assert ("refuse messages of that size" in silence) == (answered == 0)


# -- sizes --------------------------------------------------------------------------------------------


def test_an_edge_reads_no_packet_larger_than_the_run_s_models() -> None:
    stage = Stage()
    stage.welcome()
    (channel,) = stage.channels
    for size in (100_000, 10_000):
        channel.take(edge_topic(stage.run, stage.edge.edge_id, EdgeTopic.MODEL), bytes(size))
    assert channel.violations == 2
    assert stage.edge.dropped["model"] == 1  # only the one that a welcome's size allows was looked at
