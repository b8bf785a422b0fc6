"""Topics: who writes where, and names that cannot leave their branch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigurationError, RemoteProtocolError
from common.quantities import EdgeId, RunId
from common.wire import topics
from common.wire.topics import EdgeTopic

NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{1,64}\Z").filter(lambda name: name not in (".", ".."))


@given(NAMES, NAMES, st.sampled_from(EdgeTopic))
def test_a_topic_says_its_run_edge_and_leaf_again(run: str, edge: str, leaf: EdgeTopic) -> None:
    topic = topics.edge_topic(RunId(run), EdgeId(edge), leaf)
    assert topics.parse_edge_topic(topic) == (run, edge, leaf)
    assert topics.topic_matches(topics.every_edge(RunId(run), leaf), topic)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "+", "#", "a b", "a\n", "ä", "x" * 65, "$SYS", "a\0", "mapa:1"]
)
def test_a_name_that_could_leave_its_branch_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="run ="):
        topics.run_id(name)
    with pytest.raises(ConfigurationError, match="edge id ="):
        topics.edge_id(name)
    with pytest.raises(RemoteProtocolError):
        topics.parse_edge_topic(f"mapa/v1/{name}/edge/e1/hello")
    with pytest.raises(RemoteProtocolError):
        topics.parse_edge_topic(f"mapa/v1/r/edge/{name}/hello")


@given(st.text(max_size=300))
def test_any_other_text_is_a_remote_error_and_nothing_else(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        topics.parse_edge_topic(text)


@pytest.mark.parametrize(
    "topic",
    [
        "mapa/v2/r/edge/e/hello",
        "mapa/v1/r/edge/e",
        "mapa/v1/r/edge/e/hello/x",
        "mapa/v1/r/edge/e/weights",
        "mapa/v1/r/cloud",
        "mapa/v1/r/edgy/e/hello",
        "other/v1/r/edge/e/hello",
    ],
)
def test_a_topic_of_another_form_is_refused(topic: str) -> None:
    with pytest.raises(RemoteProtocolError):
        topics.parse_edge_topic(topic)


def test_client_ids_of_two_runs_never_meet() -> None:
    assert topics.edge_client_id(RunId("a"), EdgeId("b.c")) != topics.edge_client_id(
        RunId("a.b"), EdgeId("c")
    )
    assert topics.cloud_client_id(RunId("a"), "0" * 16) != topics.edge_client_id(RunId("a"), EdgeId("0" * 16))


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("#", "a/b", True),
        ("+/b", "a/b", True),
        ("+", "/a", False),
        ("/+", "/a", True),
        ("a/b/c", "a/b", False),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/+", "$SYS/x", True),
    ],
)
def test_filters_match_as_mqtt_says(topic_filter: str, topic: str, matches: bool) -> None:
    assert topics.topic_matches(topic_filter, topic) is matches
