"""A loop served by a thread of its own, for tests that act while it serves."""

from __future__ import annotations

import threading

from common.transport.loop import SelectorLoop


class LoopThread:
    """Serves a loop until it stops; `join` raises what a callback raised there."""

    def __init__(self, loop: SelectorLoop) -> None:
        self._loop = loop
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mapa-loop", daemon=True)
        serving = threading.Event()
        loop.post(serving.set)
        self._thread.start()
        serving.wait()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"the loop did not stop within {timeout:g} s"
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # kept for `join`
            self._failure = error
