"""ε of each edge over the seconds of a run: python -m experiments.unequal RUN [--paced RUN] --out STEM

The records of a run are all that it reads: who joined under which noise, and when each gradient was applied.
With --paced a second run stands beside the first, on the same axes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError, MapaError
from common.records.reader import RunRecords, read_run
from mapa.dashboard.spending import epsilon, release_kind, shard_size
from mapa.figures import line, look, panels, save
from mapa.runs import find_run

_POINTS = 10  # of a curve: each is an accounting of its own


@dataclass(frozen=True, slots=True)
class Spending:
    """What one edge has released, and what that cost it."""

    edge: int
    device: str
    releases: list[int]
    seconds: list[float]  # since the first update
    epsilon: list[float]

    @property
    def last(self) -> float:
        return self.epsilon[-1]


def spending(run: Path, points: int = _POINTS) -> list[Spending]:
    """Return the spending of every edge that has released anything, by k."""
    times: dict[int, list[float]] = {}

    def take(record: Mapping[str, Any]) -> None:
        if record["event"] == "gradient_applied" and "time" in record:
            times.setdefault(record["edge"], []).append(record["time"])

    records = read_run(run, take)
    if not times:
        raise ConfigurationError(
            f"{run}: its records have no times of updates; delays.kind = 'cyclic' has none"
        )
    begin = min(seen[0] for seen in times.values())
    return [_of_edge(k, records, [time - begin for time in times[k]], points) for k in sorted(times)]


def _of_edge(k: int, records: RunRecords, seconds: Sequence[float], points: int) -> Spending:
    manifest, joined = records.manifest, records.joined[k]
    kind = release_kind(manifest["scenario"], shard_size(manifest, k), joined)
    if kind is None:
        raise ConfigurationError(f"edge {k}: its noise is of no law that is known here")
    delta = manifest["scenario"]["privacy"]["total_delta"]
    places = sorted({max(1, round(len(seconds) * n / points)) for n in range(1, points + 1)})
    spent = [epsilon(kind, place, delta) for place in places]
    if any(one is None for one in spent):
        raise ConfigurationError(f"edge {k}: its releases have no finite ε at δ = {delta}")
    return Spending(
        edge=k,
        device=str(joined.get("device", f"edge {k}")),
        releases=places,
        seconds=[seconds[place - 1] for place in places],
        epsilon=[one for one in spent if one is not None],
    )


def spread(epsilons: Sequence[float]) -> float:
    """Return how many times the least ε the largest is."""
    return max(epsilons) / min(epsilons)


def draw(runs: Mapping[str, Sequence[Spending]], stem: Path) -> list[Path]:
    """Draw ε over time, a panel for each run."""
    with panels(1, len(runs), width=3.6, height=2.8) as (figure, axes):
        top = max(one.last for edges in runs.values() for one in edges)
        for axis, (title, edges) in zip(axes[0], runs.items(), strict=True):
            for place, one in enumerate(edges):
                label = f"{one.device}: {one.releases[-1]} releases, ε = {one.last:.2f}"
                line(axis, [0.0, *one.seconds], [0.0, *one.epsilon], look(label, place))
            axis.set(title=title, xlabel="seconds", ylabel="ε of the edge's records", ylim=(0, 1.35 * top))
            axis.legend(loc="upper left")
        return save(figure, stem)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.unequal", description=__doc__)
    parser.add_argument("run", help="a run without pacing: its name, or its folder")
    parser.add_argument("--paced", help="a run with privacy.pace = own, for the second panel")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument(
        "--out", type=Path, default=Path("unequal-privacy"), help="path of the figure without suffix"
    )
    given = parser.parse_args(words)
    named = {"one noise for all": given.run} | ({"own pace, own noise": given.paced} if given.paced else {})
    try:
        runs = {title: spending(find_run(name, given.runs_dir)) for title, name in named.items()}
        for title, edges in runs.items():
            print(f"{title}: ε spreads {spread([one.last for one in edges]):.2f} ×")
            for one in edges:
                print(f"  {one.device:12} {one.releases[-1]:6} releases   ε = {one.last:.3f}")
        for path in draw(runs, given.out):
            print(path)
    except MapaError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
