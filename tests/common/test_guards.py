"""What a broker can do to a message: nothing but delay and drop it. Each test shows that the untouched one is taken."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigurationError, ForgedMessageError, RemoteProtocolError, TooOftenError
from common.messages import Halt, Leave, Presence, Refuse
from common.quantities import EdgeId, RunId
from common.secure.boxes import RunKey
from common.wire.codec import encode, new_nonce
from common.wire.guards import CloudGuard, EdgeGuard
from common.wire.signatures import EDGES, SERVICES, Signer, Trust
from common.wire.topics import EdgeTopic, clouds_topic, edge_topic, halt_topic, presence_topic, probe_topic
from mapa.authority import Authority, Role
from tests.guard_support import LIFE, Members, gradient, model, sealed

GOLDEN = Path(__file__).parent.parent / "golden" / "v1"
INCARNATION = 8877665544332211  # of the golden messages
RUN, PRESENCE, HALT = RunId("r"), presence_topic(RunId("r")), halt_topic(RunId("r"))
ONLINE = encode(Presence(True, "0" * 16, LIFE))


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    return Members(Authority.create(tmp_path_factory.mktemp("authority"), ["localhost"]))


def refused(guard: CloudGuard | EdgeGuard, topic: str, payload: bytes) -> bool:
    try:
        guard.open(topic, payload)
    except ForgedMessageError:
        return True
    return False


def test_after_hello_and_welcome_gradients_and_models_pass_unchanged(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge()
    edge.join(cloud)
    for sequence in (1, 2, 3):
        assert cloud.open(edge.topic(EdgeTopic.GRADIENT), edge.gradient(sequence)) == gradient(sequence)
        topic = edge.topic(EdgeTopic.MODEL)
        assert edge.guard.open(topic, sealed(cloud, topic, model(sequence))) == model(sequence)


def test_a_gradient_is_the_same_bytes_inside_in_every_session(members: Members) -> None:
    edge = members.edge()
    for cloud in (members.cloud(), members.cloud()):  # the second one was started again
        edge.join(cloud)
        sent = edge.gradient()
        assert sent.startswith(gradient())
        assert cloud.open(edge.topic(EdgeTopic.GRADIENT), sent) == gradient()


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(["gradient", "hello", "leave", "will", "model", "welcome", "halt", "cloud"]),
    at=st.data(),
)
def test_no_bit_of_a_message_can_change(members: Members, kind: str, at: st.DataObject) -> None:
    cloud, edge = members.cloud(), members.edge()
    edge.join(cloud)
    said = Leave(EdgeId("e1"), "budget", edge.nonce)
    if kind in ("gradient", "hello", "leave", "will"):
        reader: CloudGuard | EdgeGuard = cloud
        topic = edge.topic(EdgeTopic(kind))
        sent = {"gradient": edge.gradient, "hello": edge.hello}.get(
            kind, lambda: sealed(edge.guard, topic, encode(said))
        )()
    else:
        reader = edge.guard
        topic = {"halt": HALT, "cloud": PRESENCE}.get(kind) or edge.topic(EdgeTopic(kind))
        body = {
            "halt": encode(Halt("finished", 9, LIFE)),
            "cloud": ONLINE,
            "model": model(),
            "welcome": edge.welcome(),
        }[kind]
        sent = sealed(cloud, topic, body)
    changed = bytearray(sent)
    changed[at.draw(st.integers(0, len(sent) - 1))] ^= 1 << at.draw(st.integers(0, 7))
    assert refused(reader, topic, bytes(changed))
    cut = at.draw(st.integers(0, len(sent) - 1))
    if sent[:cut] or kind not in ("halt", "cloud"):  # an empty one removes what is retained, and says nothing
        assert refused(reader, topic, sent[:cut])
    assert refused(reader, topic, sent + b"\0")
    assert not refused(reader, topic, sent)


def test_what_one_edge_says_counts_under_no_other_name(members: Members) -> None:
    cloud, one, two = members.cloud(), members.edge("e1"), members.edge("e2")
    one.join(cloud), two.join(cloud)
    leave = sealed(one.guard, one.topic(EdgeTopic.LEAVE), encode(Leave(EdgeId("e1"), "budget", one.nonce)))
    for leaf, sent in (
        (EdgeTopic.HELLO, one.hello()),
        (EdgeTopic.GRADIENT, one.gradient()),
        (EdgeTopic.LEAVE, leave),
    ):
        assert refused(cloud, two.topic(leaf), sent)
        assert not refused(cloud, one.topic(leaf), sent)
    sent = sealed(cloud, one.topic(EdgeTopic.MODEL), model())
    assert refused(two.guard, two.topic(EdgeTopic.MODEL), sent)
    assert not refused(one.guard, one.topic(EdgeTopic.MODEL), sent)


def test_a_will_is_no_leave_and_a_leave_no_will(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge()
    will = sealed(edge.guard, edge.topic(EdgeTopic.WILL), encode(Leave(EdgeId("e1"), "lost", edge.nonce)))
    assert refused(cloud, edge.topic(EdgeTopic.LEAVE), will)
    assert not refused(cloud, edge.topic(EdgeTopic.WILL), will)


def test_nothing_of_another_run_counts(members: Members) -> None:
    here, there = members.cloud("r"), members.cloud("s")
    edge, other = members.edge("e1", "r"), members.edge("e1", "s", nonce="1" * 16)
    edge.join(here), other.join(there)
    for leaf, sent in ((EdgeTopic.HELLO, other.hello()), (EdgeTopic.GRADIENT, other.gradient())):
        assert refused(here, edge.topic(leaf), sent)
        assert not refused(there, other.topic(leaf), sent)
    online = sealed(there, presence_topic(RunId("s")), ONLINE)
    assert refused(edge.guard, PRESENCE, online)
    assert not refused(other.guard, presence_topic(RunId("s")), online)


def test_a_session_of_another_incarnation_is_another(members: Members) -> None:
    edge = members.edge()
    signer, trust = members.signer("cloud", Role.CLOUD), members.trust()
    here, there = CloudGuard(RUN, LIFE, signer, trust), CloudGuard(RUN, LIFE + 1, signer, trust)
    hello = edge.hello()
    for cloud in (here, there):  # of the same process even: only the incarnation differs
        cloud.open(edge.topic(EdgeTopic.HELLO), hello)
    edge.guard.open(
        edge.topic(EdgeTopic.WELCOME), sealed(here, edge.topic(EdgeTopic.WELCOME), edge.welcome())
    )
    assert refused(there, edge.topic(EdgeTopic.GRADIENT), sent := edge.gradient())
    assert not refused(here, edge.topic(EdgeTopic.GRADIENT), sent)


def test_a_signature_of_an_edge_that_says_too_much_is_not_even_looked_at(members: Members) -> None:
    signer, trust, asked = members.signer("cloud", Role.CLOUD), members.trust(), list[str]()

    def may_speak(edge: EdgeId) -> bool:
        asked.append(edge)
        return len(asked) < 3

    cloud, edge = CloudGuard(RUN, LIFE, signer, trust, may_speak), members.edge()
    for sent in (edge.hello(), b"no hello"):  # the second costs a check as well
        assert refused(cloud, edge.topic(EdgeTopic.HELLO), sent) is (sent == b"no hello")
    with pytest.raises(TooOftenError):
        cloud.open(edge.topic(EdgeTopic.HELLO), edge.hello())
    assert asked == ["e1"] * 3
    edge.guard.open(
        edge.topic(EdgeTopic.WELCOME), sealed(cloud, edge.topic(EdgeTopic.WELCOME), edge.welcome())
    )
    assert not refused(cloud, edge.topic(EdgeTopic.GRADIENT), edge.gradient())  # no signature: no question


def test_what_was_said_comes_back_to_no_one(members: Members) -> None:
    """Reflection: an edge's own gradient is no model, and the cloud's model no gradient."""
    cloud, edge = members.cloud(), members.edge()
    edge.join(cloud)
    assert refused(edge.guard, edge.topic(EdgeTopic.MODEL), edge.gradient())
    assert refused(cloud, edge.topic(EdgeTopic.GRADIENT), sealed(cloud, edge.topic(EdgeTopic.MODEL), model()))
    assert refused(edge.guard, edge.topic(EdgeTopic.WELCOME), edge.hello())


def test_a_message_counts_once_and_never_after_a_later_one(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge()
    edge.join(cloud)
    topic, first, second = edge.topic(EdgeTopic.GRADIENT), edge.gradient(1), edge.gradient(2)
    assert not refused(cloud, topic, second)
    assert refused(cloud, topic, second)
    assert refused(cloud, topic, first), "a late one is lost, and its edge sends it again"
    assert not refused(cloud, topic, edge.gradient(1)), "sent again it is a new message of the same bytes"


def test_nothing_of_an_older_session_counts_in_a_newer_one(members: Members) -> None:
    cloud, before = members.cloud(), members.edge()
    old_hello = before.hello()
    cloud.open(before.topic(EdgeTopic.HELLO), old_hello)
    old_welcome = sealed(cloud, before.topic(EdgeTopic.WELCOME), before.welcome())
    before.guard.open(before.topic(EdgeTopic.WELCOME), old_welcome)
    old_gradient, old_model = before.gradient(), sealed(cloud, before.topic(EdgeTopic.MODEL), model())
    again, after = members.cloud(), members.edge()  # both are started again
    after.join(again)
    assert refused(again, after.topic(EdgeTopic.GRADIENT), old_gradient)
    assert refused(after.guard, after.topic(EdgeTopic.MODEL), old_model)
    again.open(after.topic(EdgeTopic.HELLO), old_hello)  # it is signed; the server knows its number
    after.guard.open(after.topic(EdgeTopic.WELCOME), old_welcome)  # of another process: for no one here
    assert refused(again, after.topic(EdgeTopic.GRADIENT), old_gradient)
    topic = after.topic(EdgeTopic.MODEL)
    assert not refused(after.guard, topic, sealed(again, topic, model()))
    assert not refused(again, after.topic(EdgeTopic.GRADIENT), after.gradient())


def test_repeated_hellos_and_welcomes_leave_the_session_as_it_is(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge()
    first = edge.hello()
    cloud.open(edge.topic(EdgeTopic.HELLO), first)
    old = sealed(cloud, edge.topic(EdgeTopic.WELCOME), edge.welcome())
    edge.guard.open(edge.topic(EdgeTopic.WELCOME), old)
    former = members.cloud()  # whose welcome of hello 1 is repeated to the same process
    former.open(edge.topic(EdgeTopic.HELLO), first)
    stale = sealed(former, edge.topic(EdgeTopic.WELCOME), edge.welcome())
    edge.join(cloud)
    assert not refused(cloud, edge.topic(EdgeTopic.GRADIENT), edge.gradient())
    many = [members.edge("e1") for _ in range(9)]
    for hello in (first, *(one.hello() for one in many)):
        cloud.open(edge.topic(EdgeTopic.HELLO), hello)
    for welcome in (old, stale):
        edge.guard.open(edge.topic(EdgeTopic.WELCOME), welcome)
    assert not refused(cloud, edge.topic(EdgeTopic.GRADIENT), edge.gradient())
    topic = edge.topic(EdgeTopic.MODEL)
    assert not refused(edge.guard, topic, sealed(cloud, topic, model()))


def test_an_edge_that_connects_anew_under_its_nonce_agrees_anew(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge()
    edge.join(cloud)
    stale = edge.gradient()
    old = edge.hello()
    edge.guard = members.edge("e1", nonce=edge.nonce).guard
    edge.join(cloud)
    cloud.open(edge.topic(EdgeTopic.HELLO), old)  # of the same nonce, with the former key
    assert refused(cloud, edge.topic(EdgeTopic.GRADIENT), stale)
    assert not refused(cloud, edge.topic(EdgeTopic.GRADIENT), edge.gradient())


def test_a_broker_that_strips_the_proof_is_heard_by_no_one(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge()
    plain = encode(Presence(True, "0" * 16, LIFE))
    assert refused(edge.guard, PRESENCE, plain)
    assert not refused(edge.guard, PRESENCE, sealed(cloud, PRESENCE, plain))
    edge.join(cloud)
    assert refused(edge.guard, edge.topic(EdgeTopic.WELCOME), edge.welcome())
    assert refused(edge.guard, edge.topic(EdgeTopic.MODEL), model())
    assert refused(cloud, edge.topic(EdgeTopic.GRADIENT), gradient())


def test_before_a_session_there_is_nothing_to_seal_and_nothing_to_open(members: Members) -> None:
    cloud, edge, other = members.cloud(), members.edge(), members.edge("e2")
    assert edge.guard.seal(edge.topic(EdgeTopic.GRADIENT), gradient()) is None
    assert cloud.seal(edge.topic(EdgeTopic.MODEL), model()) is None
    cloud.open(edge.topic(EdgeTopic.HELLO), edge.hello())
    assert cloud.seal(edge.topic(EdgeTopic.MODEL), model()) is None, "no welcome was said"
    refusal = Refuse(EdgeId("e1"), "fleet-full", "", edge.nonce, edge.hellos, LIFE)
    sent = sealed(cloud, edge.topic(EdgeTopic.WELCOME), encode(refusal))
    assert edge.guard.open(edge.topic(EdgeTopic.WELCOME), sent) == encode(refusal)
    assert cloud.seal(edge.topic(EdgeTopic.MODEL), model()) is None
    other.join(cloud)
    assert cloud.seal(other.topic(EdgeTopic.MODEL), model()) is not None


@pytest.mark.parametrize("name", ["e1", "broker", "helper-1"])
def test_no_one_but_the_cloud_speaks_for_the_cloud(members: Members, name: str) -> None:
    role = {"e1": Role.EDGE, "broker": Role.BROKER}.get(name, Role.HELPER)
    edge = members.edge("e5")
    if role is Role.BROKER:
        with pytest.raises(ConfigurationError, match="Ed25519"):
            members.signer(name, role)
    else:
        forged = members.signer(name, role).sign(PRESENCE, ONLINE)
        assert refused(edge.guard, PRESENCE, forged)
    assert not refused(edge.guard, PRESENCE, sealed(members.cloud(), PRESENCE, ONLINE))


def test_the_cloud_and_helpers_speak_for_no_edge(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge("e6")
    topic, body = edge.topic(EdgeTopic.LEAVE), encode(Leave(EdgeId("e6"), "budget", edge.nonce))
    for name, role in (("cloud", Role.CLOUD), ("helper-1", Role.HELPER), ("e1", Role.EDGE)):
        assert refused(cloud, topic, members.signer(name, role).sign(topic, body))
    assert not refused(cloud, topic, sealed(edge.guard, topic, body))


def test_a_certificate_of_another_authority_proves_nothing(members: Members, tmp_path: Path) -> None:
    others = Members(Authority.create(tmp_path / "other", ["localhost"]))
    cloud, stranger, edge = members.cloud(), others.edge("e1"), members.edge("e1")
    assert refused(cloud, stranger.topic(EdgeTopic.HELLO), stranger.hello())
    assert refused(edge.guard, PRESENCE, sealed(others.cloud(), PRESENCE, ONLINE))
    assert not refused(cloud, edge.topic(EdgeTopic.HELLO), edge.hello())


def test_a_certificate_that_is_not_valid_yet_or_any_more_proves_nothing(members: Members) -> None:
    now = [datetime.now(UTC)]
    cloud, edge = members.cloud(now=lambda: now[0]), members.edge()
    for moved in (timedelta(days=900), -timedelta(days=900)):
        now[0] += moved
        if moved > timedelta():
            assert refused(cloud, edge.topic(EdgeTopic.HELLO), edge.hello())
    assert not refused(cloud, edge.topic(EdgeTopic.HELLO), edge.hello())
    now[0] -= timedelta(days=1)
    assert refused(cloud, edge.topic(EdgeTopic.HELLO), edge.hello())


def test_revocation_ends_a_session_too(members: Members) -> None:
    revoked: set[tuple[str, int]] = set()
    cloud, edge, other = members.cloud(revoked=lambda: revoked), members.edge("e1"), members.edge("e2")
    edge.join(cloud), other.join(cloud)
    assert not refused(cloud, edge.topic(EdgeTopic.GRADIENT), edge.gradient())
    read = x509.load_pem_x509_certificate(members.identity("e1").certificate)
    revoked.add((SERVICES, read.serial_number))
    assert not refused(cloud, edge.topic(EdgeTopic.GRADIENT), edge.gradient()), "of the other authority"
    revoked.add((EDGES, read.serial_number))
    assert refused(cloud, edge.topic(EdgeTopic.GRADIENT), edge.gradient())
    assert refused(cloud, edge.topic(EdgeTopic.HELLO), edge.hello())
    assert not refused(cloud, other.topic(EdgeTopic.GRADIENT), other.gradient())


def test_a_hello_under_another_nonce_than_it_says_is_dropped(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge()
    edge.nonce, own = new_nonce(), edge.nonce
    with pytest.raises(RemoteProtocolError, match="nonce"):
        cloud.open(edge.topic(EdgeTopic.HELLO), edge.hello())
    edge.nonce = own
    assert not refused(cloud, edge.topic(EdgeTopic.HELLO), edge.hello())


def test_an_empty_message_claims_nothing_and_the_probe_is_the_clouds_own(members: Members) -> None:
    cloud, edge = members.cloud(), members.edge()
    for topic in (HALT, PRESENCE):
        assert sealed(cloud, topic, b"") == b"" == edge.guard.open(topic, b"") == cloud.open(topic, b"")
    assert sealed(cloud, probe_topic(RUN), b"x") == b"x" == cloud.open(probe_topic(RUN), b"x")
    with pytest.raises(RemoteProtocolError):
        cloud.open(edge.topic(EdgeTopic.HELLO), b"")


def test_only_a_cloud_answers_a_cloud_that_starts(members: Members) -> None:
    one, two, topic = members.cloud(), members.cloud(), clouds_topic(RUN)
    assert refused(one, topic, ONLINE)
    assert refused(one, topic, members.signer("e1").sign(topic, ONLINE))
    assert one.open(topic, sealed(two, topic, ONLINE)) == ONLINE


def test_a_key_that_is_none_agrees_on_nothing(members: Members) -> None:
    """All zeros, and other points of small order, would give a key that everybody knows."""
    cloud, edge = members.cloud(), members.edge()
    key = RunKey(secrets.token_bytes(32))
    key.public = bytes(32)
    identity = members.identity("e1")
    edge.guard = EdgeGuard(
        RUN, EdgeId("e1"), Signer(identity.key, identity.certificate, edge.nonce, key), members.trust()
    )
    with pytest.raises(RemoteProtocolError, match="X25519"):
        cloud.open(edge.topic(EdgeTopic.HELLO), edge.hello())


def test_an_identity_that_is_none_is_said_before_anything_starts(members: Members) -> None:
    identity, key = members.identity("e1"), RunKey(secrets.token_bytes(32))
    other = members.identity("e2")
    for pems in ((identity.key, other.certificate), (b"x", identity.certificate), (identity.key, b"x")):
        with pytest.raises(ConfigurationError, match="identity"):
            Signer(*pems, "0" * 16, key)
    with pytest.raises(ConfigurationError, match="identity"):
        Trust({EDGES: b"x"}, lambda: datetime.now(UTC))
    assert Signer(identity.key, identity.certificate, "0" * 16, key).name == "e1"


def test_the_bytes_of_proofs_are_those_of_version_1() -> None:
    """Keys, certificates and the moment are fixed, so is all that follows: for edges in other languages, too."""
    golden = json.loads((GOLDEN / "proofs.json").read_text())
    pem = {name: text.encode() for name, text in golden["pem"].items()}
    now = datetime.fromisoformat(golden["read at"])
    trust = Trust({EDGES: pem["edges"], SERVICES: pem["services"]}, lambda: now)

    def signer(name: str) -> Signer:
        key = RunKey(bytes.fromhex(golden["X25519"][name]))
        return Signer(pem[f"{name} key"], pem[f"{name} certificate"], golden["nonces"][name], key)

    run, edge_id = RunId("golden"), EdgeId("edge-1")
    edge, cloud = (
        EdgeGuard(run, edge_id, signer("edge"), trust),
        CloudGuard(run, INCARNATION, signer("cloud"), trust),
    )
    for kind, text in golden["proven"].items():
        says: CloudGuard | EdgeGuard = edge if kind in ("hello", "gradient") else cloud
        hears: CloudGuard | EdgeGuard = cloud if says is edge else edge
        topic, proven = edge_topic(run, edge_id, EdgeTopic(kind)), bytes.fromhex(text)
        body = (GOLDEN / f"{kind}.msgpack").read_bytes()
        assert hears.open(topic, proven) == body, kind
        assert sealed(says, topic, body) == proven, kind
