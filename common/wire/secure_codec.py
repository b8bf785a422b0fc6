"""Bytes ↔ what cloud and helpers say to each other; inbound bytes are hostile, as in `common/wire/codec.py`.

A module of its own: it needs the package cryptography, which an edge of a plain run does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from common.errors import ConfigurationError, RemoteProtocolError
from common.quantities import RunId
from common.secure import agreement
from common.secure.agreement import Ask, HelperHello, Member, Reply, RosterEntry, Statement
from common.secure.terms import HelperKeys, Terms
from common.wire import secure_v1 as schema
from common.wire.codec import decode_by, encode_by
from common.wire.v1 import Message

_ASKS: Mapping[str, tuple[type[Any], type[Message]]] = {
    "offer": (agreement.Offer, schema.OfferV1),
    "roster": (agreement.Roster, schema.RosterV1),
    "check": (agreement.Check, schema.CheckV1),
    "propose": (agreement.Propose, schema.ProposeV1),
    "open": (agreement.Open, schema.OpenV1),
    "finish": (agreement.Finish, schema.FinishV1),
}
_REPLIES: Mapping[str, tuple[type[Any], type[Message]]] = {
    "helper-hello": (agreement.HelperHello, schema.HelperHelloV1),
    "checked": (agreement.Checked, schema.CheckedV1),
    "signed": (agreement.Signed, schema.SignedV1),
    "refused": (agreement.Refused, schema.RefusedV1),
    "answer": (agreement.Answer, schema.AnswerV1),
}
_ASK_SCHEMAS = {kind: made[1] for kind, made in _ASKS.items()}
_REPLY_SCHEMAS = {kind: made[1] for kind, made in _REPLIES.items()}
_SCHEMAS = dict([*_ASKS.values(), *_REPLIES.values()])
_LISTS = {"entries": RosterEntry, "members": Member}


def encode_ask(ask: Ask) -> bytes:
    """Return the bytes of what a cloud asks a helper."""
    return _encoded(ask, schema.ASK_LIMIT)


def decode_ask(payload: bytes) -> Ask:
    kind, fields = decode_by(_ASK_SCHEMAS, payload, schema.ASK_LIMIT)
    for name, made in _LISTS.items():
        if name in fields:
            fields[name] = tuple(made(*one) for one in fields[name])
    if "entries" in fields:
        fields["entries"] = tuple(one._replace(signed=Statement(*one.signed)) for one in fields["entries"])
    ask: Ask = _ASKS[kind][0](**fields)
    return ask


def encode_reply(reply: Reply | HelperHello, limit: int = schema.REPLY_LIMIT) -> bytes:
    """Return the bytes of what a helper says; `limit`: `answer_limit` of the run for an answer."""
    return _encoded(reply, limit)


def decode_reply(payload: bytes, limit: int = schema.REPLY_LIMIT) -> Reply | HelperHello:
    kind, fields = decode_by(_REPLY_SCHEMAS, payload, limit)
    if kind == "helper-hello":
        fields["signed"] = Statement(*fields["signed"])
    reply: Reply | HelperHello = _REPLIES[kind][0](**fields)
    return reply


def decode_terms(content: bytes) -> Terms:
    """Return terms from their canonical bytes, and from no others."""
    try:
        fields = schema.TermsV1.model_validate_json(content)
        values = dict(fields)
        values["helpers"] = tuple(HelperKeys(*map(bytes.fromhex, keys)) for keys in fields.helpers)
        terms = Terms(**{**values, "run": RunId(fields.run), "cloud": bytes.fromhex(fields.cloud)})
    except (ValidationError, ConfigurationError) as error:
        why = str(error) if isinstance(error, ConfigurationError) else f"{error.error_count()} invalid fields"
        raise RemoteProtocolError(f"terms: {why}") from error
    if terms.encoded != content:
        raise RemoteProtocolError("terms: not in their canonical form")
    return terms


def _encoded(message: NamedTuple, limit: int) -> bytes:
    return encode_by(_SCHEMAS[type(message)], message._asdict(), limit)
