"""What is written beside each turn, so that a gateway that is started again knows a retry of its call as one.

A turn says what was answered; its note says to which request. From all notes of a rollout, in order:

    turn 0  {"id": "chatcmpl-r1-1", "request": "ab..", "seeds": [7], "began": 100.0, "chain": "cd.."}
    turn 1  {"id": "chatcmpl-r1-2", ..., "arrived": [0]}

turn 0 has arrived: its client was there to the end. Of turn 1 nobody knows; an equal request gets it again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from osmosis_ai.gateway.call import ModelCall
from osmosis_ai.gateway.retries import Attempt
from osmosis_ai.gateway.text_prompts import TextPlacement
from osmosis_ai.gateway.tree import Placement


@dataclass(frozen=True, slots=True)
class Note:
    """One note as it is read back."""

    call_id: str
    request: bytes  # fingerprint of sample, dialect and body
    seeds: list[int]  # [n]
    began: float  # seconds since the epoch
    chain: bytes  # fingerprint of the messages as the agent sent them
    key: bytes | None  # of the idempotency key
    raw_text: bool  # the prompt was a text without messages
    keeps: int | None  # leading messages that a call which names the answer does not inherit; None: none can
    logprobs: bool  # the agent asked for them
    tokens: bool  # the answer showed its tokens
    arrived: list[int]  # turns whose answers have arrived since the note before


def write_note(attempt: Attempt, call: ModelCall, placement: Placement, arrived: Sequence[int]) -> str:
    """The note of a turn that is about to be recorded."""
    note: dict[str, Any] = {
        "id": attempt.call_id,
        "request": attempt.request.hex(),
        "seeds": attempt.seeds,
        "began": round(time.time() - (time.monotonic() - attempt.began), 3),
        "chain": placement.chain.hex(),
    }
    if attempt.key is not None:
        note["key"] = attempt.key.hex()
    if isinstance(placement, TextPlacement):
        note["raw_text"] = True
    if call.continuable:
        note["keeps"] = call.instructions
    if call.wish.logprobs:
        note["logprobs"] = True
    if call.rollout_id is not None:
        note["tokens"] = True
    if arrived:
        note["arrived"] = arrived
    return orjson.dumps(note).decode()


def read_note(note: dict[str, Any]) -> Note:
    """The note in what the store gives back."""
    return Note(
        call_id=note["id"],
        request=bytes.fromhex(note["request"]),
        seeds=note["seeds"],
        began=note["began"],
        chain=bytes.fromhex(note["chain"]),
        key=bytes.fromhex(note["key"]) if "key" in note else None,
        raw_text=note.get("raw_text", False),
        keeps=note.get("keeps"),
        logprobs=note.get("logprobs", False),
        tokens=note.get("tokens", False),
        arrived=note.get("arrived", []),
    )
