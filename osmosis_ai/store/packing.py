"""Tokens, log-probabilities and JSON as they lie in the database, each with its exact way back."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from osmosis_ai.errors import StoreError

# What is no JSON type is left to `json`, which refuses it.
_AS_JSON = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def _little_endian(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def pack_ids(ids: Sequence[int]) -> bytes:
    """[N] token ids -> 4 N bytes, little-endian uint32: [1, 258] -> 01 00 00 00 02 01 00 00."""
    try:
        return _little_endian(array("I", ids))
    except (OverflowError, TypeError) as error:
        raise StoreError(f"token ids must be integers from 0 to 2**32 - 1: {error}") from error


def unpack_ids(data: bytes) -> list[int]:
    """4 N bytes -> [N] token ids."""
    return _unpack("I", data)


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """[N] float32 values held in Python floats -> 4 N bytes. A value that float32 cannot hold is refused."""
    values = array("f", logprobs)
    if values.tolist() != list(logprobs):
        pairs = zip(logprobs, values, strict=True)
        index, given = next((i, a) for i, (a, b) in enumerate(pairs) if a != b)
        raise StoreError(
            f"logprob {index} is {given!r}, which float32 cannot hold exactly. "
            "An engine's log-probabilities are float32 values; pass them on as they came."
        )
    return _little_endian(values)


def unpack_logprobs(data: bytes) -> list[float]:
    """4 N bytes -> [N] log-probabilities, bit for bit what was packed."""
    return _unpack("f", data)


def _unpack(code: str, data: bytes) -> list[Any]:
    values: array[Any] = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def digest(packed_ids: bytes) -> bytes:
    """16 bytes that name a token sequence; two sequences with one digest are the same tokens."""
    return begin_digest(packed_ids).digest()


def begin_digest(packed_ids: bytes | memoryview) -> hashlib.blake2b:
    """The same, to be continued: `begin_digest(a)` after `update(b)` has the digest of a + b."""
    return hashlib.blake2b(packed_ids, digest_size=16)


def to_json(value: object) -> str:
    """Compact JSON that reads back equal: key order, NaN, big integers and lone surrogates included.

    The order of keys is kept because chat templates print tool schemas in it.
    """
    try:
        data = orjson.dumps(value, option=_AS_JSON)
        if b"null" not in data:  # with it, it may be a NaN, which only the slow way keeps
            return data.decode()
    except TypeError:
        pass  # a big integer, half a surrogate pair, or no JSON at all
    return _to_json_slowly(value)


@dataclass(frozen=True, slots=True)
class Content:
    """A message or a list of tools: stored once, found by the hash of its JSON."""

    json: str
    hash: bytes

    @classmethod
    def of(cls, value: object) -> Content:
        text = to_json(value)
        return cls(text, hashlib.sha256(text.encode()).digest())


def _to_json_slowly(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if text.isascii():
            return text
        text.encode()  # half of a surrogate pair is legal in JSON as \ud83d, but is not UTF-8
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(f"not JSON, so it cannot be stored: {error}") from error
    return text


def printable(text: str) -> str:
    """Text for people (an exception's message may hold half a surrogate pair, which is not UTF-8)."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
