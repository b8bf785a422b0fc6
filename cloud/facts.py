"""What the records are told of a stage that opens and of an edge that joins, whichever engine runs; pure."""

from __future__ import annotations

from cloud.algorithm import Algorithm
from common.messages import EdgeJoined, StageOpened
from common.noise.law import NoiseLaw
from common.quantities import EdgeId


def stage_opened(schedule: Algorithm, t: int, *, reopened: bool) -> StageOpened | None:
    """State the stage that opens before update t; None: the algorithm has no stages."""
    stage = schedule.opened()
    if stage is None:
        return None
    return StageOpened(
        stage=stage.index,
        t=t,
        sensitivity=stage.sensitivity,
        variance=stage.variance,
        p=stage.p,
        learning_rate=stage.learning_rate,
        length=stage.length,
        tau_max=stage.tau_max,
        reopened=reopened,
    )


def edge_joined(
    index: int, edge_id: EdgeId, t: int, law: NoiseLaw | None, *, returned: bool, device: str | None = None
) -> EdgeJoined:
    """State under which law an edge takes part from update t on."""
    parameters = {} if law is None else law.parameters
    return EdgeJoined(
        edge=index,
        edge_id=edge_id,
        t=t,
        noise="none" if law is None else law.name,
        epsilon=parameters.pop("epsilon", None),
        noise_multiplier=parameters.pop("noise_multiplier", None),
        returned=returned,
        parameters=parameters,
        device=device,
    )
