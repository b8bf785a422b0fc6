"""All errors of the project, grouped by who must act."""

from __future__ import annotations

from collections.abc import Iterable


class MapaError(Exception):
    """Root of every error that we raise on purpose."""


class ConfigurationError(MapaError):
    """The operator must act; the program exits with 2 before anything starts."""


class DataFaultError(ConfigurationError):
    """A record does not fit what is declared of it. It names file, row, column and value: printed where the data
    are, and never sent or recorded elsewhere."""


class DataUnavailableError(MapaError):
    """A data set was not found locally and could not be downloaded; the message says what to do. Exit code 1."""


class RecordsError(MapaError):
    """A run's records cannot be written: no such directory, no space left. Exit code 1."""


class LedgerUnavailableError(MapaError):
    """An edge's ledger cannot be written any more: no space left, a failing disk. Exit code 1."""


class LocalProtocolError(MapaError):
    """This program violated the protocol: a bug; the service stops."""


class RemoteProtocolError(MapaError):
    """A peer violated the protocol; the message is dropped and counted, the service continues."""


class ForgedMessageError(RemoteProtocolError):
    """A message that nothing proves to be its sender's, or one that came before: it says nothing about that sender."""


class TooOftenError(RemoteProtocolError):
    """A message whose sender says more than an honest one: it was not looked at."""


class BrokerUnavailableError(MapaError):
    """No broker can be reached; the connection is retried with backoff."""


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigurationError that names the key, its value and what is allowed, unless the condition holds."""
    if not condition:
        raise ConfigurationError(f"{key} = {value}: must be {allowed}")


def nearest(given: str, names: Iterable[str]) -> str:
    """Return how the error about an unknown name ends: with the one that was probably meant, or with nothing."""
    from difflib import get_close_matches  # only an error needs it

    near = get_close_matches(given[:64], list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
