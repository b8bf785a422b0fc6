"""A simulated training as whoever sits between cloud and edges sees it: models down, gradients up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cloud.assembly import server_for
from common.errors import ConfigurationError
from common.messages import Effect, GradientArrived, Hello, SendModel
from edge.worker import EdgeWorker
from mapa.simulation.delays import arrivals_for
from mapa.simulation.simulator import refuse_loudly
from mapa.simulation.world import World

Exchange = tuple[SendModel, GradientArrived]


def exchanges(world: World, workers: Sequence[EdgeWorker]) -> Iterator[Exchange]:
    """Train with these workers; yield every model that is sent with the gradient that answers it."""
    scenario = world.scenario
    server = server_for(scenario, world.model, world.streams, edges_at_least=len(workers))
    arrivals = arrivals_for(scenario.delays, world.streams)  # devices change no gradient, only its time
    by_id = {worker.edge_id: worker for worker in workers}
    now = 0.0

    def answer(effects: Sequence[Effect]) -> Iterator[Exchange]:
        for effect in effects:
            refuse_loudly(effect)
            if isinstance(effect, SendModel):
                worker = by_id[effect.edge_id]
                made = worker.receive(effect)
                arrivals.send(worker.index, now, made)
                yield effect, made

    for worker in workers:
        yield from answer(server.receive(Hello(edge_id=worker.edge_id)))
    while server.halted is None and (due := arrivals.next()) is not None:
        when, arrived = due
        now = now if when is None else when
        yield from answer(server.receive(arrived))


def models_at(world: World, updates: Sequence[int]) -> list[SendModel]:
    """Return x_t and its ΔS for each t, as an edge would get them from a training of the scenario."""
    if not updates or min(updates) < 1:
        raise ConfigurationError(f"iterations = {list(updates)}: must be one or more integers ≥ 1")
    longest = max(updates)
    scenario = world.scenario
    if longest > scenario.iterations:
        world = replace(world, scenario=scenario.model_copy(update={"iterations": longest}))
    wanted = sorted(set(updates))
    found: dict[int, SendModel] = {}
    for sent, _ in exchanges(world, world.workers()):
        while len(found) < len(wanted) and sent.version >= wanted[len(found)]:
            found[wanted[len(found)]] = sent
        if len(found) == len(wanted):
            break
    # cyclic arrivals answer every update; a t that nobody was sent takes the last model there is
    return [found.get(t, sent) for t in updates]
