"""mapa chaos: what cannot be run, or not be judged, is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program_support import Mapa


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--containers", "--iterations", "200000"), "must be at most 256 MB"),
        (("--edge-image", "mapa-edge"), "--edge-image: is for --containers"),
        (("--set", "records.events=false"), "records.events = false"),
        (("--set", "records.keep_gradients=false"), "records.keep_gradients"),
        (("--iterations", "30"), "at least 40 updates"),
        (("--only", "9"), "1 … 6"),
        (("--faults", "nowhere.txt"), "--faults nowhere.txt"),
        (("--count", "1001"), "--count 1001"),
        (("--kills", "0"), "--kills 0"),
        (("--kills", "3", "--faults", "faults.txt"), "give one of them"),
        (("--set", "data.set=local"), "local"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_starts(
    mapa: Mapa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    monkeypatch.setattr("mapa.chaos.trial.find_mosquitto", lambda: "mosquitto")
    done = mapa("chaos", "quickstart", *words)
    assert done.code == 2, done.out
    assert named in done.err
    assert not list(tmp_path.iterdir())


def test_without_a_broker_nothing_starts(mapa: Mapa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapa.chaos.trial.find_mosquitto", lambda: None)
    done = mapa("chaos", "quickstart")
    assert done.code == 2
    assert "no mosquitto found" in done.err
