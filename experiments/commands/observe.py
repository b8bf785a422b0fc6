"""mapa observe: an honest-but-curious observer on the broker, for `mapa attack --from-payloads`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from common.transport.connection import MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import new_nonce
from experiments.attack.observer import record_payloads
from mapa.commands.common_options import with_groups
from mapa.commands.options import Connection
from mapa.output import note


@with_groups()
def observe_command(
    connection: Connection,
    out: Annotated[Path, typer.Option(help="folder for the payloads")],
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="gradients to record")] = 100,
) -> None:
    """Record the gradients of a run as any reader of its topics sees them; Ctrl-C ends it early."""
    introduced, run = connection.credentials(), connection.run_id
    options = MqttOptions(
        address=connection.address,
        client_id=f"{run}::observer-{new_nonce()}",
        username=introduced.username,
        password=introduced.password,
        tls=introduced.tls,
    )
    with SelectorLoop() as loop:
        channel = MqttChannel(options, loop)
        recorder = record_payloads(channel, run, out, limit, on_full=loop.stop)
        channel.connect(connection.connect_timeout, note)
        try:
            loop.run()
        except KeyboardInterrupt:
            pass
        finally:
            channel.close()
    print(f"{len(recorder.kept)} gradients in {out}", file=sys.stderr)
