"""mapa observe: an honest-but-curious observer on the broker, for `mapa attack --from-payloads`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from common.connection import MqttOptions, parse_address
from common.loop import SelectorLoop
from common.mqtt import MqttChannel
from common.wire.codec import new_nonce
from common.wire.topics import run_id
from experiments.attack.observer import record_payloads
from experiments.commands import options


def observe_command(
    broker: Annotated[str, typer.Option(help="HOST[:PORT]")],
    run: options.RunName,
    out: Annotated[Path, typer.Option(help="where the payloads go")],
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="gradients to record")] = 100,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    cert: options.Cert = None,
    key: options.Key = None,
) -> None:
    """Record released gradients as anybody who may read the run's topics sees them."""
    introduced = options.credentials(username, password_file, tls, tls_ca, cert, key)
    checked = run_id(run)
    connection = MqttOptions(
        address=parse_address(broker),
        client_id=f"{checked}::observer-{new_nonce()}",
        username=introduced.username,
        password=introduced.password,
        tls=introduced.tls,
    )
    with SelectorLoop() as loop:
        channel = MqttChannel(connection, loop)
        recorder = record_payloads(channel, checked, out, limit, on_full=loop.stop)
        channel.connect(30.0)
        try:
            loop.run()
        except KeyboardInterrupt:
            pass
        finally:
            channel.close()
    print(f"{len(recorder.kept)} gradients in {out}", file=sys.stderr)
