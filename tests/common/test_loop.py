"""The event loop: a call that was posted is made, whoever posts it and whenever."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from common.transport.loop import SelectorLoop

LONG = 60.0  # seconds: none of these waits for its end


@pytest.fixture
def loop() -> Iterator[SelectorLoop]:
    with SelectorLoop() as loop:
        yield loop


def served(loop: SelectorLoop) -> bool:
    """Serve until stopped; False: a call was missed."""
    return loop.serve(lambda: loop._stopping, until=loop.now() + LONG)


def test_a_call_posted_before_the_loop_serves_is_made(loop: SelectorLoop) -> None:
    loop.post(loop.stop)
    assert served(loop)


def test_a_call_posted_by_a_call_or_a_timer_does_not_wait_for_the_next_event(loop: SelectorLoop) -> None:
    loop.post(lambda: loop.post(lambda: loop.call_later(0.0, lambda: loop.post(loop.stop))))
    assert served(loop)


def test_every_call_that_threads_post_is_made_however_the_loop_sleeps(loop: SelectorLoop) -> None:
    calls, threads, each = [], 4, 2000

    def post_all() -> None:
        turn = threading.Event()
        for _ in range(each):
            turn.clear()
            loop.post(turn.set)
            assert turn.wait(LONG)  # so the loop sleeps, or is about to, at the next
            calls.append(1)
        if len(calls) == threads * each:
            loop.stop()

    for _ in range(threads):
        threading.Thread(target=post_all, daemon=True).start()
    assert served(loop)
    assert len(calls) == threads * each


def test_a_signal_that_comes_while_the_loop_sleeps_may_post(loop: SelectorLoop) -> None:
    former = signal.signal(signal.SIGALRM, lambda *_: loop.stop())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert served(loop)
    finally:
        signal.signal(signal.SIGALRM, former)
