"""mapa/v1/<run>/…: who writes where. The layout lets a broker's ACL give each edge its own branch alone."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from common.errors import ConfigurationError, RemoteProtocolError
from common.quantities import EdgeId, RunId

VERSION = 1
_ROOT = f"mapa/v{VERSION}"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LONGEST = len(_ROOT) + 2 * 64 + 32


class EdgeTopic(Enum):
    """The leaves of an edge's branch."""

    HELLO = "hello"  # edge → cloud
    GRADIENT = "gradient"  # edge → cloud
    LEAVE = "leave"  # edge → cloud
    WILL = "will"  # broker on the edge's behalf → cloud
    WELCOME = "welcome"  # cloud → edge: welcome or refuse
    MODEL = "model"  # cloud → edge

    __hash__ = object.__hash__  # there is one of each; Enum's own takes two calls in Python


class HelperTopic(Enum):
    """The leaves of a helper's branch."""

    HELLO = "hello"  # helper → cloud
    REPLY = "reply"  # helper → cloud
    ASK = "ask"  # cloud → helper


_LEAVES = {leaf.value: leaf for leaf in EdgeTopic}


class EdgeAddress(NamedTuple):
    """What a topic of an edge's branch says."""

    run: RunId
    edge_id: EdgeId
    leaf: EdgeTopic


def is_name(text: str) -> bool:
    """Return whether a text may name a run or an edge; names become file names too, hence no `.` or `..`."""
    return _NAME.fullmatch(text) is not None and text not in (".", "..")


def run_id(text: str) -> RunId:
    return RunId(_checked("run", text))


def edge_id(text: str) -> EdgeId:
    return EdgeId(_checked("edge id", text))


def _checked(key: str, text: str) -> str:
    if not is_name(text):
        raise ConfigurationError(
            f"{key} = {text!r}: allowed are 1 to 64 of A-Z a-z 0-9 . _ - (not `.` or `..`)"
        )
    return text


def edge_topic(run: RunId, edge: EdgeId, leaf: EdgeTopic) -> str:
    return f"{_ROOT}/{run}/edge/{edge}/{leaf.value}"


def every_edge(run: RunId, leaf: EdgeTopic) -> str:
    """Return the filter that the cloud subscribes to."""
    return f"{_ROOT}/{run}/edge/+/{leaf.value}"


def helper_topic(run: RunId, name: str, leaf: HelperTopic) -> str:
    """Return a topic of a helper's branch; its name is that of its certificate."""
    return f"{_ROOT}/{run}/helper/{name}/{leaf.value}"


def every_helper(run: RunId, leaf: HelperTopic) -> str:
    """Return the filter that the cloud subscribes to."""
    return helper_topic(run, "+", leaf)


def helper_name(topic: str) -> str:
    """Return whose branch a topic belongs to, or raise RemoteProtocolError."""
    parts = topic.split("/") if len(topic) <= _LONGEST else []
    if len(parts) != 6 or parts[3] != "helper" or not is_name(parts[4]):
        raise RemoteProtocolError(f"topic {topic[:_LONGEST]!r}: expected {_ROOT}/<run>/helper/<name>/<kind>")
    return parts[4]


def halt_topic(run: RunId) -> str:
    """Return the retained topic that ends a run for early and late edges alike."""
    return f"{_ROOT}/{run}/halt"


def presence_topic(run: RunId) -> str:
    """Return the retained topic that says whether the cloud is there."""
    return f"{_ROOT}/{run}/cloud"


def clouds_topic(run: RunId) -> str:
    """Return the topic where a cloud that starts asks whether another one serves the run."""
    return f"{_ROOT}/{run}/clouds"


def probe_topic(run: RunId) -> str:
    """Return the topic where a cloud that starts sends itself a message as large as a model."""
    return f"{_ROOT}/{run}/probe"


def edge_client_id(run: RunId, edge: EdgeId) -> str:
    """Return the MQTT client id of an edge: the broker lets one connection at a time hold it.

    A colon is in no name, so two runs never share a client id; an ACL goes by user name, not by this.
    """
    return f"{run}:{edge}"


def cloud_client_id(run: RunId, nonce: str) -> str:
    """Return a client id of the cloud; a second cloud does not throw the first out, it finds it."""
    return f"{run}::{nonce}"


@lru_cache(maxsize=4096)  # a gradient's topic comes back at every update: 60 ns instead of 2 µs
def parse_edge_topic(topic: str) -> EdgeAddress:
    """Return run, edge id and leaf of a topic, or raise RemoteProtocolError."""
    parts = topic.split("/") if len(topic) <= _LONGEST else []
    if len(parts) != 6 or parts[0] != "mapa" or parts[1] != f"v{VERSION}" or parts[3] != "edge":
        raise RemoteProtocolError(f"topic {topic[:_LONGEST]!r}: expected {_ROOT}/<run>/edge/<edge id>/<kind>")
    run, edge, leaf = parts[2], parts[4], _LEAVES.get(parts[5])
    if not is_name(run) or not is_name(edge) or leaf is None:
        raise RemoteProtocolError(f"topic {topic!r}: not a run, an edge id and one of {sorted(_LEAVES)}")
    return EdgeAddress(RunId(run), EdgeId(edge), leaf)


def topic_matches(topic_filter: str, topic: str) -> bool:
    """Return whether an MQTT filter with + and # takes a topic."""
    filters, levels = topic_filter.split("/"), topic.split("/")
    if levels[0].startswith("$") and filters[0] in ("+", "#"):  # MQTT-4.7.2-1
        return False
    for position, part in enumerate(filters):
        if part == "#":
            return True
        if position >= len(levels) or part not in ("+", levels[position]):
            return False
    return len(filters) == len(levels)
