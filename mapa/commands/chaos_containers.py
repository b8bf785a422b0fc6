"""mapa chaos --containers: what its containers are made of."""

from __future__ import annotations

from pathlib import Path

from mapa.chaos.container_bed import Boxes, disk_sizes
from mapa.chaos.plan import Plan
from mapa.commands.containers import for_a_container, image_for, memory_for, message_limit, own_code
from mapa.container_run import Images, connect
from mapa.run_parts import edge_data_bytes


def boxes_for(name: str, plan: Plan, edge_image: str | None, data_dir: Path | None) -> Boxes:
    """Return what to make containers of; ConfigurationError where it cannot be done, before anything starts."""
    disk_sizes(plan)
    scenario = plan.scenario
    short, folder = for_a_container(name)
    message = message_limit(scenario, plan.data_dir)
    return Boxes(
        client=connect(),
        images=Images(edge=edge_image or image_for(scenario)),
        environment={
            "SCENARIO": short,
            "SET": ";".join(plan.settings),
            "EDGES": str(scenario.edges),
            "EDGES_AT_LEAST": str(scenario.workers),
            "GATHER": "600",
            "MESSAGE_SIZE_LIMIT": str(message),
            **({} if scenario.seed is None else {"ALLOW_SEED": "true"}),
            **own_code(scenario, folder),
        },
        memory=memory_for(message, scenario.workers, edge_data_bytes(scenario, plan.data_dir)),
        data_dir=data_dir,
        scenarios=folder,
    )
