"""The reference table from cells to files: choices on held-out records, runs, rows; interrupted, it goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import ConfigurationError
from experiments.harness import sweep
from experiments.reference.audited import (
    Audited,
    audits_of,
    read_audited,
    run_audit,
    section,
    write_audited,
)
from experiments.reference.cells import (
    Cell,
    Change,
    Chosen,
    Group,
    Search,
    all_cells,
    asked_of,
    choice_for,
    methods,
    read_choices,
    write_choices,
)
from experiments.reference.table import FORMAT, Job, Row, markdown, read_rows, run_job, write_rows

CHOICES = Path(__file__).parent / "choices.toml"
Watch = Callable[[float, float, str], None]  # runs done, runs in all, what ended last


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run."""

    size: str
    out: Path
    data_dir: Path
    seeds: int | None = None
    only: Sequence[str] = ()
    tune: bool = False  # choose on held-out records first; otherwise as choices.toml says
    resume: bool = True
    jobs: int | None = None
    others: Sequence[Path] = ()  # rows of others for the same table
    audit: bool = False  # each release mechanism; otherwise what audited.csv has is shown


@dataclass(frozen=True, slots=True)
class Table:
    rows: list[Row]
    files: list[Path]
    failures: dict[str, str]
    runs: int  # made now
    cached: int
    looks: int  # at held-out records, for the choices in force
    audited: list[Audited]  # now or before


def make_table(order: Order, watch: Watch | None = None) -> Table:
    """Run what is missing; write rows.csv, table.md, choices.toml where choices were made, audited.csv where asked."""
    order.out.mkdir(parents=True, exist_ok=True)
    others = [row for path in order.others for row in read_rows(path)]
    cells = all_cells(order.size, seeds=order.seeds, only=order.only)
    runner = _Runner(order, watch)
    own_choices = order.out / "choices.toml"
    if order.tune:
        chosen = {**read_choices(own_choices), **_choose(cells, runner)}
        write_choices(own_choices, chosen)
    else:
        chosen = {**read_choices(CHOICES), **read_choices(own_choices)}
    jobs = []
    for cell in cells:
        choice = choice_for(cell, chosen)
        if choice is None:
            raise ConfigurationError(
                f"{cell.name}: nothing was chosen for it on held-out records; run it with --tune first"
            )
        jobs.append(Job(cell, choice, order.data_dir))
    rows = [row for row in runner.run(jobs) if row is not None]
    paths = [order.out / "rows.csv", order.out / "table.md"]
    write_rows(paths[0], [*rows, *others])
    kept = order.out / "audited.csv"
    if order.audit:
        write_audited(kept, runner.audit({**read_choices(CHOICES), **chosen}))
    audited = read_audited(kept) if kept.exists() else []
    paths += [kept] if audited else []
    paths[1].write_text(markdown([*rows, *others]) + section(audited), encoding="utf-8")
    needed = {trial.group for trial, _ in asked_of(cells)}
    looks = sum(one.looks for group, one in chosen.items() if group in needed)
    return Table([*rows, *others], paths, runner.failures, runner.runs, runner.cached, looks, audited)


def _choose(cells: Sequence[Cell], runner: _Runner) -> dict[Group, Chosen]:
    """Try every grid on held-out records, and go on beyond its end where the best value lies there."""
    trials = asked_of(cells)
    searches = {cell.group: Search(_grid(cell)) for cell, _ in trials}
    trial_of = {cell.group: cell for cell, _ in trials}
    while trials:
        rows = runner.run([Job(cell, choice, runner.order.data_dir) for cell, choice in trials])
        for (cell, choice), row in zip(trials, rows, strict=True):
            if row is not None:
                searches[cell.group].learn(choice, row.accuracy)
        trials = [(trial_of[g], choice) for g, search in searches.items() for choice in search.further()]
    return {group: search.chosen for group, search in searches.items() if search.looks}


def _grid(cell: Cell) -> dict[str, list[Change]]:
    return {key: list(values) for key, values in methods()[cell.method].grid.items()}


class _Runner:
    """Runs jobs on cores, with a cache of rows by what was run."""

    def __init__(self, order: Order, watch: Watch | None) -> None:
        self.order, self._watch = order, watch
        self.failures: dict[str, str] = {}
        self.runs = self.cached = 0
        self._cache = order.out / "cache"
        self._cache.mkdir(parents=True, exist_ok=True)

    def run(self, jobs: Sequence[Job]) -> list[Row | None]:
        """Return a row for each job, None where it failed."""
        found: dict[str, Row] = {}
        if self.order.resume:
            for job in jobs:
                row = self._read(_key(job))
                if row is not None:
                    found[_key(job)] = row
        self.cached += len(found)
        missing = {_key(job): job for job in jobs if _key(job) not in found}
        if self._watch is not None and missing:
            self._watch(0, len(missing), "")
        for done, ended in enumerate(sweep(run_job, list(missing.values()), jobs=self.order.jobs), 1):
            if ended.value is not None:
                found[_key(ended.task)] = ended.value
                self._write(_key(ended.task), ended.value)
                self.runs += 1
            else:
                self.failures[ended.task.cell.name] = ended.error or "unknown"
            if self._watch is not None:
                self._watch(done, len(missing), ended.task.cell.name)
        return [found.get(_key(job)) for job in jobs]

    def audit(self, chosen: Mapping[Group, Chosen]) -> list[Audited]:
        """Return what was found of each release mechanism of the size, in its order; never from a cache."""
        audits = audits_of(self.order.size, chosen, self.order.data_dir)
        found: dict[str, Audited] = {}
        if self._watch is not None:
            self._watch(0, len(audits), "audit")
        for done, ended in enumerate(sweep(run_audit, audits, jobs=self.order.jobs), 1):
            name = f"audit: {ended.task.mechanism}"
            if ended.value is not None:
                found[name] = ended.value
            else:
                self.failures[name] = ended.error or "unknown"
            if self._watch is not None:
                self._watch(done, len(audits), name)
        names = [f"audit: {audit.mechanism}" for audit in audits]
        return [found[name] for name in names if name in found]

    def _read(self, key: str) -> Row | None:
        try:
            return Row(**json.loads((self._cache / f"{key}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None  # absent, or of another form: it is made again

    def _write(self, key: str, row: Row) -> None:
        temporary = self._cache / f".{key}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(asdict(row)), encoding="utf-8")
        temporary.replace(self._cache / f"{key}.json")


def _key(job: Job) -> str:
    """Name what was run: the cell, its choice, and the recipe and method as they are now; sizes may share it."""
    cell = {key: value for key, value in asdict(job.cell).items() if key != "size"}
    base = job.cell.base().digest  # of the recipe with all that the size changes in it
    text = json.dumps([FORMAT, cell, job.choice, base, repr(methods()[job.cell.method])])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
