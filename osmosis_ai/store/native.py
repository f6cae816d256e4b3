"""The bytes of calls as they came over the wire, each as what it adds to the call before it in its sample.

A conversation is sent again with every call, so a body begins and ends like the one before it:

    turn 0   {"messages":[{"role":"user","content":"2*3?"}],"stream":false}
    turn 1   {"messages":[{"role":"user","content":"2*3?"},{"role":"assistant","content":"6"}],"stream":false}
    kept     the first 45 and the last 17 bytes of turn 0, and what stands between them in turn 1:
             ,{"role":"assistant","content":"6"}

A packed body is 4 bytes head, 4 bytes tail (little-endian), and the piece between them, deflated.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from osmosis_ai.store.base import Native

_LENGTHS = struct.Struct("<II")
LEVEL = 1  # of zlib: JSON shrinks to a third at once, higher levels cost more than they gain


def pack_body(body: bytes, before: bytes) -> bytes:
    """The body as its difference to the one before it; b"" before means that it stands alone."""
    head = _common_start(body, before)
    tail = _common_end(body, before, min(len(body), len(before)) - head)
    return _LENGTHS.pack(head, tail) + zlib.compress(body[head : len(body) - tail], LEVEL)


def unpack_body(packed: bytes, before: bytes) -> bytes:
    """What was packed, byte for byte."""
    head, tail = _LENGTHS.unpack_from(packed)
    return before[:head] + zlib.decompress(packed[_LENGTHS.size :]) + before[len(before) - tail :]


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

    def pack(self, rollout_id: str, sample_id: str, native: Native | None) -> Columns:
        if native is None:
            return None, None, None
        before = self._latest.get(rollout_id, {}).get(sample_id, b"")
        answered = zlib.compress(native.answered, LEVEL) if native.answered else b""
        return native.wire, pack_body(native.sent, before), answered

    def stored(self, rollout_id: str, sample_id: str, native: Native | None) -> None:
        """It is on disk now, so that the next may lean on it."""
        if native is not None:
            self._latest.setdefault(rollout_id, {})[sample_id] = native.sent

    def forget(self, rollout_id: str) -> None:
        self._latest.pop(rollout_id, None)


def read_natives(turns: Iterable[tuple[int, str, str, bytes, bytes]]) -> dict[int, Native]:
    """(ordinal, sample id, wire, sent, answered) of a rollout's turns that have them, in order -> calls."""
    latest: dict[str, bytes] = {}
    natives = {}
    for ordinal, sample_id, wire, sent, answered in turns:
        latest[sample_id] = unpack_body(sent, latest.get(sample_id, b""))
        natives[ordinal] = Native(wire, latest[sample_id], zlib.decompress(answered) if answered else b"")
    return natives
