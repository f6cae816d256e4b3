"""The bytes of calls as they came over the wire, each as what it adds to the call before it in its sample.

A conversation is sent again with every call, so a body begins and ends like the one before it:

    turn 0   {"messages":[{"role":"user","content":"2*3?"}],"stream":false}
    turn 1   {"messages":[{"role":"user","content":"2*3?"},{"role":"assistant","content":"6"}],"stream":false}
    kept     the first 45 and the last 17 bytes of turn 0, and what stands between them in turn 1:
             ,{"role":"assistant","content":"6"}

Of the piece between them, the texts of messages are not kept again: the database has each message once.

    message 1 of turn 0   {"role":"user","content":"a long question"}
    piece                 {"role": "user", "content": "a long question", "name": null}
    kept                  {"role": "user", "content": "  <text of message 1>  ", "name": null}

A packed body is 4 bytes head, 4 bytes tail, 4 bytes number of texts; for each text 4 bytes of what is kept
before it and 4 bytes number of its message (all little-endian); and what is kept, deflated where it is long.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from osmosis_ai.store.base import Native
from osmosis_ai.store.packing import Content
from osmosis_ai.types import Turn

_HEAD = struct.Struct("<III")
_TEXT = struct.Struct("<II")
LEVEL = 1  # of zlib: JSON shrinks to a third at once, higher levels cost more than they gain
DEFLATED_FROM = 4096  # bytes, a page: for less, zlib takes more CPU than writing less saves
SHORTEST_TEXT = 32  # bytes that are worth a reference

Texts = Sequence[tuple[int, bytes]]  # numbers of messages, and their JSON


def pack_body(body: bytes, before: bytes, texts: Texts = ()) -> bytes:
    """The body as its difference to the one before it; b"" before means that it stands alone.

    `texts` are messages whose texts stand in it in this order, perhaps.
    """
    head = _common_start(body, before)
    tail = _common_end(body, before, min(len(body), len(before)) - head)
    place, end = head, len(body) - tail
    kept, references = [], []
    for number, message in texts:
        text = text_of(message)
        found = body.find(text, place, end) if len(text) >= SHORTEST_TEXT else -1
        if found >= 0:
            references.append(_TEXT.pack(found - place, number))
            kept.append(body[place:found])
            place = found + len(text)
    kept.append(body[place:end])
    return b"".join([_HEAD.pack(head, tail, len(references)), *references, _deflated(b"".join(kept))])


def unpack_body(packed: bytes, before: bytes, messages: Sequence[bytes] = ()) -> bytes:
    """What was packed, byte for byte; `messages` are the JSON of those that it refers to, by number."""
    head, tail, num_texts = _HEAD.unpack_from(packed)
    end = _HEAD.size + num_texts * _TEXT.size
    kept, place = _inflated(packed[end:]), 0
    parts = [before[:head]]
    for size, number in _TEXT.iter_unpack(packed[_HEAD.size : end]):
        parts += kept[place : place + size], text_of(messages[number])
        place += size
    return b"".join([*parts, kept[place:], before[len(before) - tail :]])


def text_of(message: bytes) -> bytes:
    """The text inside a message's JSON, as JSON writes it; b"" where it has none that is easy to find.

    b'{"role":"user","content":"2*3?"}' -> b'2*3?'
    """
    start = message.find(_TEXT_START)
    if start < 0 or not message.endswith(b'"}'):
        return b""
    end = message.rfind(_TOOL_CALL_ID)
    return message[start + len(_TEXT_START) : end if end >= 0 else -2]


_TEXT_START = b'"content":"'
_TOOL_CALL_ID = b'","tool_call_id":"'


def _deflated(data: bytes) -> bytes:
    return b"\0" + data if len(data) < DEFLATED_FROM else b"\1" + zlib.compress(data, LEVEL)


def _inflated(data: bytes) -> bytes:
    return zlib.decompress(data[1:]) if data[:1] == b"\1" else data[1:]


def _common_start(a: bytes, b: bytes) -> int:
    """How many bytes both begin with: halving, so that few comparisons look at all of them."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _common_end(a: bytes, b: bytes, limit: int) -> int:
    """How many bytes, `limit` at most, both end with."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low


Columns = tuple[str | None, bytes | None, bytes | None]  # wire, sent, answered


class Bodies:
    """The latest body of each sample of the rollouts that run: what the next one is a difference to."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, bytes]] = {}  # rollout id -> sample id -> body

    def pack(
        self, turn: Turn, native: Native | None, known: int, new: Sequence[Content], response: Content
    ) -> Columns:
        """The columns of a turn whose first `known` messages are in the database, with these behind them."""
        if native is None:
            return None, None, None
        before = self._latest.get(turn.rollout_id, {}).get(turn.sample_id, b"")
        texts = [(known + i, content.json.encode()) for i, content in enumerate(new)]
        answer = [(0, response.json.encode())]
        answered = pack_body(native.answered, b"", answer) if native.answered else b""
        return native.wire, pack_body(native.sent, before, texts), answered

    def stored(self, rollout_id: str, sample_id: str, native: Native | None) -> None:
        """It is on disk now, so that the next may lean on it."""
        if native is not None:
            self._latest.setdefault(rollout_id, {})[sample_id] = native.sent

    def forget(self, rollout_id: str) -> None:
        self._latest.pop(rollout_id, None)


Row = tuple[Any, ...]  # ordinal, sample id, wire, sent, answered, ids of messages, id of response


def read_natives(rows: Iterable[Row], messages: Mapping[int, str]) -> dict[int, Native]:
    """The calls of a rollout by ordinal, from its turns in order and the JSON of their messages by id."""
    latest: dict[str, bytes] = {}
    natives = {}
    for ordinal, sample_id, wire, sent, answered, message_ids, response in rows:
        texts = [messages[message_id].encode() for message_id in json.loads(message_ids)]
        latest[sample_id] = unpack_body(sent, latest.get(sample_id, b""), texts)
        answer = unpack_body(answered, b"", [messages[response].encode()]) if answered else b""
        natives[ordinal] = Native(wire, latest[sample_id], answer)
    return natives
