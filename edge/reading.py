"""Read what the cloud sends. Whatever does not fit this edge's own books is a RemoteProtocolError."""

from __future__ import annotations

from common.errors import RemoteProtocolError
from common.messages import ModelReceived, Refuse
from common.quantities import EdgeId
from common.wire.codec import Admission, decode_answer, decode_model
from edge.session import EdgeSession
from edge.worker import EdgeWorker


def read_model(edge_id: EdgeId, payload: bytes, worker: EdgeWorker, session: EdgeSession) -> ModelReceived:
    received = decode_model(edge_id, payload, worker.model.dimension)
    # `clip` asks again, for whoever calls it: no release without it. Here, so that such a model is dropped before it
    # counts as an answer.
    worker.check(received)
    _check_sequence("model: acknowledged", received.acknowledged, session)
    return received


def read_answer(
    edge_id: EdgeId, payload: bytes, nonce: str, session: EdgeSession
) -> Admission | Refuse | None:
    """Return the answer; None: it is for another process of this id. A refuse of a gradient names no process."""
    answer = decode_answer(edge_id, payload)
    if isinstance(answer, Refuse):
        return answer if answer.nonce in (None, nonce) else None
    if answer.nonce != nonce:
        return None
    if answer.number > session.hellos:
        raise RemoteProtocolError(f"welcome: number = {answer.number}: no such hello was said")
    _check_sequence("welcome: last_sequence", answer.welcome.last_sequence, session)
    return answer


def _check_sequence(key: str, sequence: int, session: EdgeSession) -> None:
    """Believe in no gradient that was never debited: a cloud that has seen more answers `ledger-lost`."""
    debited = session.last_sequence
    if sequence > debited:
        raise RemoteProtocolError(f"{key} = {sequence}: must be at most {debited}, the last one debited")
