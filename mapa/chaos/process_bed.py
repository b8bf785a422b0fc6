"""A run under chaos as processes of this machine: a Mosquitto, a `mapa cloud`, a `mapa edge` for every edge."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from pathlib import Path
from typing import Self

from common.own_code import allowing
from common.quantities import RunId
from common.transport.connection import BrokerAddress
from mapa.brokers import Broker, MosquittoOptions, private_mosquitto
from mapa.chaos.plan import Plan
from mapa.chaos.programs import Program
from mapa.chaos.schedule import CLOUD
from mapa.process_run import edge_arguments


class ProcessBroker:
    """A private Mosquitto."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def address(self) -> BrokerAddress:
        return self._broker.address

    def kill(self) -> None:
        self._broker.stop(signal.SIGKILL)

    def stop(self) -> None:
        self._broker.stop()

    def start(self) -> None:
        self._broker.start()

    def pause(self, on: bool) -> None:
        os.kill(self._broker.pid, signal.SIGSTOP if on else signal.SIGCONT)


class ProcessBed:
    """The processes of one run; everything they write is in one directory."""

    host = "127.0.0.1"

    def __init__(self, plan: Plan, run: RunId, directory: Path) -> None:
        self._plan, self._run, self._directory = plan, run, directory
        self._stack = contextlib.ExitStack()
        self.broker: ProcessBroker

    def __enter__(self) -> Self:
        limit = MosquittoOptions(max_payload=self._plan.setting.payload_bytes)
        broker = self._stack.enter_context(private_mosquitto(self._directory / "broker", limit))
        self.broker = ProcessBroker(broker)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def node(self, name: str, broker: BrokerAddress) -> Program:
        slow = self._directory / "slow" / name
        slow.parent.mkdir(exist_ok=True)
        return Program(name, self._directory / f"{name}.log", lambda: self._words(name, broker), slow)

    def collect(self) -> None:
        """Everything is in the directory."""

    def _words(self, name: str, broker: BrokerAddress) -> list[str]:
        """Return the command of a node's next process."""
        plan, runs = self._plan, self._directory / "runs"
        if name != CLOUD:
            state = self._directory / "state" / name
            words = edge_arguments(plan.scenario, self._run, broker, state, plan.data_dir, 1)
            return words + ([] if plan.scenario.seed is None else ["--allow-seed"])
        words = [*plan.program, "cloud", "--broker", str(broker)]
        words += ["--runs-dir", str(runs), "--data-dir", str(plan.data_dir)]
        if found := sorted(runs.glob("*/manifest.json")):
            named = shlex.split(allowing(plan.scenario.canonical()))
            return [*words, *named, "--resume", str(found[0].parent)]
        return [*words, *plan.words, "--run", self._run, "--edges-at-least", str(plan.scenario.workers)]
