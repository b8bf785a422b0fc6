"""All checks of one run, from its directory or from a bundle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common.errors import ConfigurationError
from common.models.model import Model
from common.records.keeping import keeps_gradients
from common.records.rundir import FORMAT, run_of, versions
from common.scenario.scenario import Scenario
from mapa.recording import ENGINES, NETWORKED
from mapa.verification.bundle import Bundle, claims, read_bundle
from mapa.verification.check import Check, claimed, failed, guarded, passed
from mapa.verification.checks_privacy import (
    Released,
    against_ledgers,
    released_by_log,
    released_by_records,
    statement_again,
    why_not_private,
)
from mapa.verification.checks_records import (
    Told,
    continuity,
    end_of,
    events_by_themselves,
    log_by_itself,
    records_by_themselves,
    summary_by_counts,
    words_of_scenario,
)
from mapa.verification.log_replay import (
    Rerun,
    Start,
    final_model,
    first_state,
    model_of,
    model_of_run,
    scenario_of,
    start_of,
)
from mapa.verification.untrusted_files import (
    EVENTS,
    MANIFEST,
    MODEL,
    PART,
    START,
    START_OF_LOG,
    SUMMARY,
    NotCheckedError,
    RunFiles,
    UnreadableError,
    find_ledgers,
    of_directory,
)

_LONGEST = 200  # characters of a package's name or version


@dataclass(slots=True)
class Verification:
    """A subject and what is allowed in checking it."""

    files: RunFiles
    bundle: Bundle | None
    allowed: Collection[str]
    unlogged: bool = False  # whether a run without a gradient log may pass
    faults: list[Check] = field(default_factory=list)  # found while it was read

    @classmethod
    def of(
        cls, path: Path, allowed: Collection[str], ledgers: Collection[Path] = (), *, unlogged: bool = False
    ) -> Verification:
        """Read a bundle, or a run's directory with the ledgers that it holds."""
        if path.is_dir():
            files = of_directory(path)
            return cls(files, None, allowed, unlogged, list(_take_ledgers(files, path, ledgers)))
        bundle = read_bundle(path)
        return cls(bundle.files, bundle, allowed, unlogged, bundle.checks)

    def checks(self) -> Iterator[Check]:
        """Yield every check, each whatever became of those before it."""
        yield from self.faults
        if self.bundle is not None:
            yield from guarded("manifest", MANIFEST, lambda: self._claims(self.bundle))
        for check in self._of_run():
            yield self._placed(check)

    def _claims(self, bundle: Bundle | None) -> Iterator[Check]:
        if bundle is not None and bundle.manifest:
            manifest, summary = self.files.json(MANIFEST), self.files.json(SUMMARY)
            reasons = why_not_private(manifest, summary)
            yield from claims(bundle, manifest, reasons)

    def _placed(self, check: Check) -> Check:
        """Name a file of the run as the part of the bundle that it is."""
        if self.bundle is None or check.part not in self.files:
            return check
        return Check(check.name, check.status, f"{self.files.prefix}{check.part}", check.detail)

    def _of_run(self) -> Iterator[Check]:
        files = self.files
        scenarios: list[Scenario] = []
        yield from guarded("scenario", MANIFEST, lambda: self._scenario(scenarios))
        yield from guarded("versions", MANIFEST, self._versions)
        yield from guarded("fields", SUMMARY, lambda: records_by_themselves(files))
        reruns: list[tuple[Start, Rerun]] = []
        if files.segments and (START_OF_LOG in files or self._is_due()):
            yield from guarded("log", "log", lambda: log_by_itself(files))
            if self._is_due():
                yield from guarded("checkpoint", START[0], self._checkpoint)
            yield from guarded("replay", "log", lambda: self._rerun(scenarios, reruns))
            for _, rerun in reruns:
                yield from guarded("continuity", "log", partial(continuity, rerun))
        else:
            yield from guarded("log", "log", self._no_log)
        for scenario in scenarios:
            model = reruns[0][0].model if reruns else self._model(scenario)
            yield from self._records(scenario, model, reruns[0][1] if reruns else None)

    def _records(self, scenario: Scenario, model: Model | None, rerun: Rerun | None) -> Iterator[Check]:
        """Check the records against the log; against each other, where there is none."""
        files = self.files
        engine = str(files.json(MANIFEST).get("engine"))
        lines: list[Told] = []
        yield from guarded("words", SUMMARY, partial(words_of_scenario, files, scenario, model))
        yield from guarded(
            "events", EVENTS, partial(events_by_themselves, files, scenario, engine, rerun, lines)
        )
        told, metrics = lines[0] if lines else None, None if model is None else model.metrics
        yield from guarded("end", SUMMARY, partial(end_of, files, scenario, engine, rerun, told))
        yield from guarded(
            "summary", SUMMARY, partial(summary_by_counts, files, scenario, rerun, told, metrics)
        )
        found: list[Released] = []
        yield from guarded(
            "releases", SUMMARY, partial(_released, files, scenario, engine, rerun, told, found)
        )
        if found or not files.json(SUMMARY).get("edges"):
            yield from guarded("ledgers", PART, partial(against_ledgers, files, scenario, found, rerun))
            yield from guarded("ε", SUMMARY, partial(statement_again, files, scenario, found, rerun))
        layout = None if model is None else model.layout
        yield from guarded("model", MODEL, partial(model_of_run, files, rerun, scenario, layout))

    def _model(self, scenario: Scenario) -> Model | None:
        """Return the model of a run without a log; None: it cannot be made here."""
        try:
            return model_of(scenario, self.files.json(MANIFEST), self.allowed)
        except (NotCheckedError, UnreadableError):
            return None

    def _scenario(self, found: list[Scenario]) -> Iterator[Check]:
        manifest, summary = self.files.json(MANIFEST), self.files.json(SUMMARY)
        stated = manifest.get("scenario_sha256")
        text = json.dumps(manifest.get("scenario"), sort_keys=True, separators=(",", ":"))
        written = hashlib.sha256(text.encode()).hexdigest()
        if stated != written:
            yield failed(
                "scenario", MANIFEST, f"scenario_sha256 = {stated!r:.80}; its scenario has {written}"
            )
        if summary.get("scenario_sha256") != written:
            yield failed("scenario", SUMMARY, "scenario_sha256 is not that of the manifest's scenario")
        yield from self._copies(manifest, summary)
        scenario = scenario_of(manifest, self.allowed)
        found.append(scenario)
        if scenario.digest != written:
            yield failed("scenario", MANIFEST, "the scenario is not in its canonical form")
        elif stated == written == summary.get("scenario_sha256"):
            yield passed("scenario", MANIFEST, f"SHA-256 {written[:16]}…")

    def _versions(self) -> Iterator[Check]:
        """Check that the manifest is of a format read here, and names what made the run; nothing can prove it."""
        manifest = self.files.json(MANIFEST)
        stated, form = manifest.get("versions"), manifest.get("format")
        if form != FORMAT or type(form) is not int:
            yield failed("versions", MANIFEST, f"format = {form!r:.40}; this version reads {FORMAT} alone")
            return
        if not isinstance(stated, dict) or not all(map(_is_version, stated.items())):
            yield failed("versions", MANIFEST, f"versions = {stated!r:.100}: not names with a version each")
            return
        if missing := [name for name in ("mapa-testbed", "python", "numpy") if name not in stated]:
            yield failed("versions", MANIFEST, f"versions: {', '.join(missing)} missing")
            return
        own = versions()
        other = [name for name in ("mapa-testbed", "numpy") if own[name] != stated[name]]
        here = ", ".join(f"{name} {own[name]}" for name in other) or "the same"
        made = f"mapa-testbed {stated['mapa-testbed']}, numpy {stated['numpy']}"
        yield passed("versions", MANIFEST, f"as stated, {made}; here {here}")

    def _copies(self, manifest: dict[str, object], summary: dict[str, object]) -> Iterator[Check]:
        """Check what summary.json repeats of the scenario."""
        scenario = manifest.get("scenario")
        values = scenario if isinstance(scenario, dict) else {}
        said = {
            **{key: (values.get(key), summary.get(key)) for key in ("iterations", "batch_size", "seed")},
            **{
                key: ((values.get(key) or {}).get(of), summary.get(key))
                for key, of in (("algorithm", "name"), ("model", "name"), ("data", "set"))
            },
            **{key: (manifest.get(key), summary.get(key)) for key in ("run", "name", "engine")},
        }
        try:
            run_of(manifest)
        except ConfigurationError as error:
            yield failed("scenario", MANIFEST, str(error).removeprefix(f"{MANIFEST}: "))
        if manifest.get("engine") not in (*ENGINES, *NETWORKED):
            yield failed(
                "scenario", MANIFEST, f"engine = {manifest.get('engine')!r:.40}: no engine of this version"
            )
        for key, (one, other) in said.items():
            if one != other:
                yield failed("scenario", SUMMARY, f"{key} = {other!r:.80}; the manifest has {one!r:.80}")
        if manifest.get("seed") != values.get("seed"):
            yield failed(
                "scenario", MANIFEST, f"seed = {manifest.get('seed')!r:.40}; its scenario has another"
            )

    def _rerun(self, scenarios: list[Scenario], found: list[tuple[Start, Rerun]]) -> Iterator[Check]:
        if not scenarios:
            raise NotCheckedError("the scenario cannot be read here: see above")
        start = start_of(self.files, scenarios[0], self.allowed)
        rerun = Rerun.of(self.files, start)
        found.append((start, rerun))
        first = "x₁ follows from the scenario" if start.derived else "x₁ as the first checkpoint has it"
        yield passed(
            "replay", "log", f"taken again to t = {rerun.server.updates} by {_algorithm(start)}; {first}"
        )

    def _checkpoint(self) -> Iterator[Check]:
        first_state(self.files)
        yield passed("checkpoint", START[0], "the cloud at t = 1 is whole, with its checksums")

    def _is_due(self) -> bool:
        """Tell whether a whole log must be there; where nobody can tell, it is looked for."""
        try:
            return self._keeps_log()
        except Exception:  # records of somebody else: the check of what cannot be read fails by itself
            return True

    def _keeps_log(self) -> bool:
        """Tell whether the run, by its own scenario, keeps the log of its gradients when it has ended."""
        manifest = self.files.json(MANIFEST)
        scenario = manifest["scenario"]
        asked = scenario["records"].get("keep_gradients")
        if manifest.get("engine") in ENGINES:
            return asked is True  # a simulation writes one only where it is told to
        return keeps_gradients(asked, scenario["iterations"], final_model(self.files)[0]["x"].size)

    def _no_log(self) -> Iterator[Check]:
        if self._keeps_log():
            raise UnreadableError("log", "missing, and by its scenario this run keeps its gradients")
        found = "only its end is left" if self.files.segments else "missing"
        words = f"{found}: this run did not keep its gradients, so nothing is replayed"
        if not self.unlogged:
            raise NotCheckedError(f"{words}; --allow-unlogged takes the final model for claimed")
        yield claimed("log", "log", words)


def _released(
    files: RunFiles,
    scenario: Scenario,
    engine: str,
    rerun: Rerun | None,
    told: Told | None,
    found: list[Released],
) -> Iterator[Check]:
    summary = files.json(SUMMARY)
    if rerun is not None:
        found += released_by_log(rerun, scenario, engine, summary)
    else:
        found += released_by_records(files, scenario, engine, told, summary)
    yield from ()


def _take_ledgers(files: RunFiles, path: Path, given: Collection[Path]) -> Iterator[Check]:
    """Add what ledgers say of the run to its files; yield those in its own directory that cannot be read."""
    try:
        run = run_of(files.json(MANIFEST))
    except (UnreadableError, ConfigurationError):
        return  # nobody can tell which accounts are this run's: the check of the manifest fails
    found = find_ledgers(path, run, given)
    files.ledgers += found.statements
    files.other_ledgers.update(found.others)
    yield from (failed("ledgers", part, why) for part, why in found.faults.items())


def _is_version(item: tuple[object, object]) -> bool:
    return all(isinstance(text, str) and 0 < len(text) <= _LONGEST and text.isprintable() for text in item)


def _algorithm(start: Start) -> str:
    return start.scenario.algorithm.name
