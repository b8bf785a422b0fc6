"""The way of an ordinary gradient through the cloud in one function: what codec, server and service do for it, merged.

They stay the single truth: whatever is not ordinary is left to them before anything has changed, and whatever follows
from an update beside its model is theirs. `tests/cloud/test_quick_way.py` holds the two ways equal over random
histories, in state, log, records and messages.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from common.messages import SendModel
from common.quantities import EdgeId
from common.records.gradient_log import Kind
from common.wire import v1

if TYPE_CHECKING:
    from cloud.service import CloudService

_FLOATS, _FLOAT32 = np.dtype("<f4"), np.dtype(np.float32)
_TAGS = (v1.GRADIENT_MARK, v1.UINT64, v1.UINT64, v1.UINT64, v1.FLOAT64)
_unpack_from, _vdot, _frombuffer = v1.HEADER.unpack_from, np.vdot, np.frombuffer


def take(service: CloudService, edge_id: EdgeId, payload: bytes) -> bool:
    """Take a gradient that is ordinary; False: it is not, and nothing has changed."""
    server, peer = service.server, service.peers.get(edge_id)
    account, schedule, t = server.edges.get(edge_id), server.schedule, server.t
    if account is None or peer is None or schedule is None or server.halted is not None:
        return False
    if len(payload) != v1.HEADER_BYTES + 4 * server.model.size or not account.present or server.terms.caps:
        return False
    mark, tag_a, sequence, tag_b, version, tag_c, incarnation, tag_d, sensitivity = _unpack_from(payload)
    if (mark, tag_a, tag_b, tag_c, tag_d) != _TAGS or incarnation != server.incarnation:
        return False
    if sequence != account.last_sequence + 1 or not 1 <= version <= t:
        return False
    stage = account.sent_models.stage_of(version, sensitivity)
    if stage is None:
        return False
    gradient = _frombuffer(payload, _FLOATS, -1, v1.HEADER_BYTES)
    square = float(_vdot(gradient, gradient))
    if not square < math.inf:  # NaN, an infinity, or squares that leave float32
        return False
    if account.reach < math.inf and server.is_too_long(account, math.sqrt(square), sensitivity):
        return False

    now, records = service.loop.now(), service.records
    peer.heard(now)
    if service.history is not None:
        service.history.append(Kind.GRADIENT, server, now - records.began, payload, edge_id)

    fact = server.change(account, edge_id, sequence, version, sensitivity, gradient, stage)
    terms = server.terms
    due = terms.evaluate_every and t % terms.evaluate_every == 0
    if server.schedule is not schedule or due or t >= terms.iterations or service.waits_for_disk:
        service.answer([fact, *server.followed(account, t, schedule)], now)
        return True
    records.facts.append((now, fact))
    service.last_update = now
    if service.first_update is None:
        service.first_update = now
    model = server.send(account)
    if type(model) is SendModel:
        service.send_model(peer, model, now)
    else:  # x is not finite
        service.answer([model], now)
    return True
