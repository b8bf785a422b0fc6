"""A run in an MLflow store: an SQLite file and a folder of artifacts. The one place that knows mlflow."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.records.reader import read_events
from mapa.export.tables import CurvePoint, Curves, parameters_of, started
from mapa.run_result import Run
from mapa.runs import statement_of

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # an export sends nothing anywhere
try:
    import alembic  # noqa: F401 - mlflow-skinny comes without what its own store needs
    import sqlalchemy  # noqa: F401
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient
except ImportError as error:
    raise ConfigurationError(
        f"--to mlflow: {error.name or 'mlflow'} is not installed: pip install 'mapa-testbed[mlflow]'"
    ) from error

EXPERIMENT = "mapa"
DATABASE = "mlflow.db"
_METRICS, _PARAMETERS = 1000, 100  # of one call
_LONGEST = 6000  # characters of a parameter


def store_uri(folder: Path) -> str:
    return f"sqlite:///{folder.resolve() / DATABASE}"


def write_run(run: Run, folder: Path) -> int:
    """Add a run to the store of this folder; return the number of points. ConfigurationError: it is there already."""
    client = MlflowClient(tracking_uri=store_uri(folder), registry_uri=store_uri(folder))
    known = client.get_experiment_by_name(EXPERIMENT)
    if known is None:
        artifacts = (folder.resolve() / "artifacts").as_uri()
        experiment = client.create_experiment(EXPERIMENT, artifact_location=artifacts)
    else:
        experiment = known.experiment_id
        if any(info.info.run_name == run.name for info in _runs(client, experiment)):
            raise ConfigurationError(f"--out {folder}: run {run.name!r} is in its store already")
    began = started(run.manifest)
    made = client.create_run(experiment, start_time=_milliseconds(began, 0.0), run_name=run.name)
    key = made.info.run_id
    parameters = [Param(name, str(value)[:_LONGEST]) for name, value in parameters_of(run.scenario).items()]
    for some in _batches(parameters, _PARAMETERS):
        client.log_batch(key, params=some)
    count, end = 0, 0.0
    for points in _batches(_points(run), _METRICS):
        metrics = [Metric(p.curve, p.value, _milliseconds(began, p.seconds), p.t) for p in points]
        client.log_batch(key, metrics=metrics)
        count, end = count + len(points), max(end, *(p.seconds or 0.0 for p in points))
    client.log_text(key, "\n".join(statement_of(run.summary)) + "\n", "statement.txt")
    client.log_dict(key, dict(run.summary), "summary.json")
    client.set_tag(key, "mapa.reason", run.reason)
    client.set_terminated(
        key, "FINISHED" if run.reason == "finished" else "FAILED", _milliseconds(began, end)
    )
    return count


def _points(run: Run) -> Iterator[CurvePoint]:
    curves = Curves()
    yield from curves.take(read_events(run.path))
    yield from curves.at_end(run.summary)


def _runs(client: MlflowClient, experiment: str) -> Iterator[Any]:
    token: str | None = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _milliseconds(began: float, seconds: float | None) -> int:
    return round(1000 * (began + (seconds or 0.0)))


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
