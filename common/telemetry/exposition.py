"""Readings as Prometheus reads them. The one place that knows prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from common.errors import ConfigurationError
from common.telemetry.family import Buckets, Family, Kind, Readings

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigurationError(
        "--metrics-port: prometheus-client is not installed: pip install 'mapa-testbed[metrics]'"
    ) from error

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class _Collected(Collector):
    """Readings that were taken before."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        return (_metric(family, reading) for family, reading in self._readings.items())


def exposition(readings: Readings) -> bytes:
    """Return the text of Prometheus's format, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)  # none of the library's own: they tell processor time
    registry.register(_Collected(readings))
    return generate_latest(registry)


def _metric(family: Family, reading: float | Mapping[str, float] | Buckets) -> Metric:
    if isinstance(reading, Buckets):
        ends = [*map(float, reading.bounds), float("inf")]
        buckets = [
            ("+Inf" if end == float("inf") else f"{end:g}", count)
            for end, count in zip(ends, reading.cumulative(), strict=True)
        ]
        return HistogramMetricFamily(family.name, family.text, buckets=buckets, sum_value=reading.total)
    labels = [] if family.label is None else [family.label]
    made: CounterMetricFamily | GaugeMetricFamily
    if family.kind is Kind.COUNTER:
        made = CounterMetricFamily(family.name.removesuffix("_total"), family.text, labels=labels)
    else:
        made = GaugeMetricFamily(family.name, family.text, labels=labels)
    for values, number in _samples(family, reading):
        made.add_metric(values, number)
    return made


def _samples(family: Family, reading: float | Mapping[str, float]) -> Iterator[tuple[list[str], float]]:
    if isinstance(reading, Mapping):
        yield from (([value], number) for value, number in family.samples(reading))
    else:
        yield [], reading
