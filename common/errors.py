"""The one error tree, branched by who must act."""

from __future__ import annotations


class MapaError(Exception):
    """Root of every error that we raise on purpose."""


class ConfigurationError(MapaError):
    """The operator must act; the program exits with 2 before anything starts."""


class DataUnavailableError(MapaError):
    """A data set is neither here nor to be had; the message says what to do. Exit code 1."""


class RecordsError(MapaError):
    """A run's records cannot be written: no such place, no space left. Exit code 1."""


class LedgerUnavailableError(MapaError):
    """An edge's ledger cannot be written any more: no space left, a failing disk. Exit code 1."""


class LocalProtocolError(MapaError):
    """We broke the protocol: a bug; the service stops."""


class RemoteProtocolError(MapaError):
    """A peer broke it; the message is dropped and counted, the service goes on."""


class BrokerUnavailableError(MapaError):
    """Nobody's fault; the shell retries with backoff."""


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigurationError that names the key, its value and what is allowed, unless the condition holds."""
    if not condition:
        raise ConfigurationError(f"{key} = {value}: must be {allowed}")
