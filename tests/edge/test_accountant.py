"""The accountant apart: the same answers and errors, and nothing of it stays with the edge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.accounting.budget import max_charges
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.errors import ConfigurationError, MapaError
from common.mechanism.mechanism import Mechanism
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from edge import accountant
from edge.accountant import max_charges_apart

BUDGET = Budget(3.0, 1e-5)


@pytest.fixture(autouse=True)
def forgetful() -> None:
    max_charges_apart.cache_clear()


def kind(law: NoiseLaw) -> ReleaseKind:
    return ReleaseKind(Mechanism(law, 16), 800)


@pytest.mark.slow
def test_it_says_what_the_accountant_says() -> None:
    spent = (Spent(kind(GammaNorm(0.1)), 3),)
    for law in (Gaussian(2.0), GammaNorm(0.2)):
        answer = max_charges_apart(BUDGET, kind(law), spent)
        assert answer == max_charges(BUDGET, kind(law), spent) > 0


@pytest.mark.slow
def test_it_is_asked_once_for_edges_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    first = max_charges_apart(BUDGET, kind(GammaNorm(0.2)), ())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert max_charges_apart(BUDGET, kind(GammaNorm(0.2)), ()) == first


def test_what_it_refuses_is_refused_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scipy.py").write_text("raise ImportError('as in the image without it')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="scipy is not installed"):
        max_charges_apart(BUDGET, kind(Gaussian(2.0)), ())


@pytest.mark.slow
def test_what_lies_in_the_caller_s_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("raise SystemExit('not ours')\n")
    monkeypatch.chdir(tmp_path)
    assert max_charges_apart(BUDGET, kind(GammaNorm(0.2)), ()) > 0


def test_an_accountant_that_never_answers_is_no_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = tmp_path / "python"
    mute.write_text("#!/bin/sh\nexec sleep 100\n")
    mute.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(mute))
    monkeypatch.setattr(accountant, "TIMEOUT", 0.1)
    with pytest.raises(MapaError, match="no answer"):
        max_charges_apart(BUDGET, kind(Gaussian(2.0)), ())


def test_an_accountant_that_dies_is_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(MapaError, match="accountant failed"):
        max_charges_apart(BUDGET, kind(Gaussian(2.0)), ())


def test_an_edge_that_ends_leaves_no_accountant_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "100"], text=True) as process:
        monkeypatch.setattr(accountant, "_asked", {process})
        accountant.end_accountants()
    assert process.returncode < 0
