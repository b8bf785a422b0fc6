"""What each model version was sent with."""

from __future__ import annotations

from cloud.admission import SentModels


def test_a_version_has_the_stage_and_bound_that_it_was_sent_with() -> None:
    openings = SentModels()
    for version, stage, sensitivity in ((1, 1, 1.0), (1, 1, 1.0), (4, 1, 1.0), (7, 2, 0.5), (9, 3, 0.25)):
        openings.sent(version, stage, sensitivity)
    assert [openings.stage_of(version, 1.0) for version in (1, 6, 7, 100)] == [1, 1, None, None]
    assert [openings.stage_of(version, 0.5) for version in (6, 7, 8, 9)] == [None, 2, 2, None]
    assert openings.stage_of(9, 0.25) == 3
    assert openings.stage_of(0, 1.0) is None


def test_nothing_was_sent_before_the_first_model() -> None:
    assert SentModels().stage_of(1, 0.0) is None


def test_a_version_that_was_sent_with_two_bounds_has_both() -> None:
    openings = SentModels()
    openings.sent(1, 1, 1.0)
    openings.sent(5, 1, 1.0)
    openings.sent(5, 2, 0.5)  # the stage was opened again by a newcomer
    assert (openings.stage_of(5, 1.0), openings.stage_of(5, 0.5)) == (1, 2)
    assert (openings.stage_of(4, 0.5), openings.stage_of(6, 1.0)) == (None, None)
