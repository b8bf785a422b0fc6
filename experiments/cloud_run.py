"""One run's cloud from scenario to records: what `mapa cloud` and `mapa run` share."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud.assembly import server_for
from cloud.evaluation import Evaluator
from cloud.service import CloudService
from common.channel import Will
from common.connection import BrokerAddress, Credentials, MqttOptions
from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset
from common.datasets.holdout import with_holdout
from common.health import beat
from common.loop import SelectorLoop
from common.models.model import Model
from common.models.registry import make_model
from common.mqtt import MqttChannel
from common.quantities import RunId
from common.randomness import streams_for
from common.rundir import RunDirectory
from common.scenario import Scenario
from common.wire.codec import Presence, encode_presence, new_nonce
from common.wire.topics import cloud_client_id, presence_topic
from experiments.budget import calibrated
from experiments.live import View
from experiments.world import deal

EXIT_CODES = {"finished": 0, "no-budget": 3, "interrupted": 130}


@dataclass(frozen=True, slots=True)
class Stage:
    """A scenario with its data and model loaded, before anything connects."""

    scenario: Scenario
    dataset: Dataset
    model: Model
    shard_sizes: list[int]  # n_k

    @classmethod
    def of(cls, scenario: Scenario, data_dir: Path) -> Stage:
        dataset = with_holdout(load_dataset(scenario.data.set, data_dir), scenario.data.holdout)
        model = make_model(
            scenario.model.name,
            shape=dataset.shape,
            classes=dataset.classes,
            options=scenario.model.options,
        )
        sizes = [len(shard) for shard in deal(scenario, dataset)]
        return cls(calibrated(scenario, sizes), dataset, model, sizes)

    @property
    def payload_bytes(self) -> int:
        """How large a model on the wire is, header and topic included, with room to spare."""
        return 4 * self.model.dimension + 4096


@dataclass(slots=True)
class CloudRun:
    """The cloud of one run, connected."""

    stage: Stage
    service: CloudService
    channel: MqttChannel
    loop: SelectorLoop
    directory: RunDirectory

    def serve(self) -> str:
        """Serve until the halt; return its reason. SIGINT and SIGTERM end the run early, records intact."""
        with _signals(self.loop, self.service.interrupt):
            self.loop.run()
        halted = self.service.halted
        return halted.reason if halted is not None else "interrupted"


@contextlib.contextmanager
def open_cloud(
    stage: Stage,
    *,
    run: RunId,
    broker: BrokerAddress,
    credentials: Credentials,
    directory: RunDirectory,
    view: View,
    edges_at_least: int,
    connect_timeout: float = 30.0,
    gather: float | None = None,
) -> Iterator[CloudRun]:
    """Connect the cloud and begin to serve hellos as soon as the loop runs."""
    scenario, nonce = stage.scenario, new_nonce()
    loop = SelectorLoop()
    options = MqttOptions(
        address=broker,
        client_id=cloud_client_id(run, nonce),
        username=credentials.username,
        password=credentials.password,
        tls=credentials.tls,
        will=Will(presence_topic(run), encode_presence(Presence(False, nonce)), retain=True),
    )
    started: list[CloudService] = []

    def announce_again() -> None:
        for service in started:
            service.announce()

    def records_written() -> None:
        directory.flush()  # whoever watches the run reads them; whatever dies now, they are there
        view.refresh()

    channel = MqttChannel(
        options,
        loop,
        on_connected=announce_again,
        on_lost=lambda reason: view.say(f"the broker is gone ({reason}); retrying"),
    )
    service = CloudService(
        run=run,
        scenario=scenario,
        server=server_for(scenario, stage.model, streams_for(scenario.seed), edges_at_least=edges_at_least),
        evaluator=Evaluator.of(stage.model, stage.dataset.test, scenario.model.regularization),
        channel=channel,
        loop=loop,
        journal=directory.journal if scenario.records.events else None,
        on_records=records_written,
        on_idle=view.say,
        gather=gather,
        nonce=nonce,
    )
    view.attach(service)
    channel.connect(connect_timeout)
    service.start()
    started.append(service)
    beat(loop, lambda: channel.connected)
    try:
        yield CloudRun(stage, service, channel, loop, directory)
    finally:
        channel.close()
        loop.close()


@contextlib.contextmanager
def _signals(loop: SelectorLoop, interrupt: Any) -> Iterator[None]:
    """Let SIGINT and SIGTERM call `interrupt` in the loop's thread."""
    before = {
        number: signal.signal(number, lambda *_: loop.post(interrupt))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
