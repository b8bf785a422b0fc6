"""Environment variables that give options of `mapa cloud` and `mapa edge`, outside a container as MAPA_<NAME> only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PREFIX = "MAPA_"  # a shell may well have a RUN, SEED or LINK that means something else
_CONNECTION = (
    "BROKER",
    "RUN",
    "BROKER_USERNAME",
    "BROKER_PASSWORD_FILE",
    "TLS",
    "TLS_CA",
    "TLS_CERT",
    "TLS_KEY",
    "PLAIN_PASSWORD",
    "CONNECT_TIMEOUT",
)
_PRIVACY = ("EPSILON", "NOISE_MULTIPLIER", "TOTAL_EPSILON", "TOTAL_DELTA")
_METRICS = ("METRICS_PORT", "METRICS_ADDRESS")
RESUMED = (*_CONNECTION, *_METRICS, "RUNS_DIR", "TEST_DATA")  # of a cloud that goes on with a run
CLOUD = (
    *_CONNECTION,
    *_METRICS,
    *_PRIVACY,
    "EDGES",
    "EDGES_AT_LEAST",
    "GATHER",
    "ITERATIONS",
    "SEED",
    "LINKS",
    "RUNS_DIR",
    "TEST_DATA",
    "STARTED_BY",
)
EDGE = (
    *_CONNECTION,
    *_METRICS,
    *_PRIVACY,
    "NOISE",
    "LINK",
    "ALLOW",
    "CODE",
    "ALLOW_SEED",
    "ALLOW_UNPROTECTED",
    "MOST_LOCAL_STEPS",
    "ACCOUNTS",
    "STATE_DIR",
    "EDGE_DATA",
    "DATA_NAME",
)


def text(environ: Mapping[str, str], name: str) -> str:
    """Return a variable without the white space around it; unset and empty are the same."""
    return environ.get(name, "").strip()


def prefixed(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return MAPA_<NAME> of every name with a value under its short or prefixed name; the prefixed one wins."""
    values = {PREFIX + name: text(environ, PREFIX + name) or text(environ, name) for name in names}
    return {name: value for name, value in values.items() if value}


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without our variables, for a command whose options are all arguments."""
    options = {PREFIX + name for name in (*CLOUD, *EDGE)}
    return {name: value for name, value in environ.items() if name not in options}
