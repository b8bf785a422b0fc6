"""What the engine says of a project's containers as it happens: who has started, and who has ended with which code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from mapa.container_run import PROJECT

EXIT = "exitCode"


class EngineEvents:
    """A thread that hears starts and ends, in their order. A restart policy's are among them: nobody else sees all."""

    def __init__(self, client: Any, project: str) -> None:
        self._heard: dict[str, Callable[[int | None], None]] = {}  # by the container's name
        self.changed = threading.Condition()
        filters = {"label": f"{PROJECT}={project}", "type": "container", "event": ["start", "die"]}
        self._stream = client.events(decode=True, filters=filters)
        self._thread = threading.Thread(target=self._listen, name="mapa-engine-events", daemon=True)

    def tell(self, container: str, what: Callable[[int | None], None]) -> None:
        """Call `what` with the exit code of every end of a container, and with None at every start."""
        self._heard[container] = what

    def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until a condition holds, which is looked at after every event; False: it never did."""
        with self.changed:
            return self.changed.wait_for(condition, timeout)

    def _listen(self) -> None:
        for event in self._stream:
            said = event["Actor"]["Attributes"]
            told = self._heard.get(said.get("name", ""))
            if told is not None:
                with self.changed:
                    told(int(said[EXIT]) if event["Action"] == "die" else None)
                    self.changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._thread.join(10.0)
