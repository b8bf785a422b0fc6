"""What NOT to do, as the paper's authors did it: pickled tensors, QoS 2, sockets as they come.

Four packets for one, Nagle's algorithm in between, and whoever may publish may run code where it is unpickled.

python -m experiments.bench.authors edges PORT K N            python -m experiments.bench.authors cloud PORT N SECONDS
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
import time
from typing import Any

import paho.mqtt.client as paho
import torch
from paho.mqtt.enums import CallbackAPIVersion

_QOS = 2


def _client(port: int) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect_async("127.0.0.1", port)
    return client


def serve_edges(port: int, edges: int, dimension: int) -> None:
    """Answer every model with a prepared gradient, each edge in a thread of its own, until the program is ended."""
    gradient = pickle.dumps(torch.full((dimension,), 1e-3))

    def edge(k: int) -> threading.Thread:
        client = _client(port)

        def on_message(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG001
            pickle.loads(message.payload)
            client.publish(f"edge-{k}/gradient", gradient, _QOS)

        client.on_connect = lambda client, *_: client.subscribe(f"edge-{k}/model", _QOS)
        client.on_subscribe = lambda client, *_: client.publish(f"edge-{k}/gradient", gradient, _QOS)
        client.on_message = on_message
        return threading.Thread(target=client.loop_forever)

    for k in range(edges):
        edge(k).start()


def serve_cloud(port: int, dimension: int, seconds: float) -> dict[str, float]:
    """Return rate and processor time of x ← x − γg̃, over so many seconds after the first update."""
    client, model = _client(port), torch.zeros(dimension)
    moments: list[tuple[float, float]] = []

    def on_message(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG001
        model.sub_(1e-3 * pickle.loads(message.payload))
        client.publish(message.topic.replace("gradient", "model"), pickle.dumps(model), _QOS)
        moments.append((time.monotonic(), time.process_time()))
        if moments[-1][0] > moments[0][0] + seconds:
            client.disconnect()

    client.on_connect = lambda client, *_: client.subscribe("+/gradient", _QOS)
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.on_message = on_message
    client.loop_forever()
    (began, before), (ended, after), updates = moments[0], moments[-1], len(moments) - 1
    return {"rate": updates / (ended - began), "cloud": 1e6 * (after - before) / updates}


if __name__ == "__main__":
    role, *numbers = sys.argv[1:]
    if role == "edges":
        serve_edges(*map(int, numbers))
    else:
        port, dimension, seconds = numbers
        print(json.dumps(serve_cloud(int(port), int(dimension), float(seconds))))
