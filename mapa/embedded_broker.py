"""The embedded broker's program: amqtt on one loopback port, until its stdin ends or a signal comes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import warnings


async def serve(port: int) -> None:
    """Serve MQTT to any client on this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from amqtt.broker import Broker

        broker = Broker(
            {
                "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
                # Naming the plugins leaves out the loggers and $SYS, which cost and say too much.
                "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
            }
        )
        await broker.start()
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(over.set))

    def await_parent() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=await_parent, daemon=True).start()
    await over.wait()
    os._exit(0)  # nothing to save; amqtt's own shutdown waits seconds for its clients


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(serve(int(sys.argv[1])))
