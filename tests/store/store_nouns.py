"""One run, one rollout and one turn, to vary in tests."""

import struct
from dataclasses import replace

from osmosis_ai.store.base import RunRecord
from osmosis_ai.types import Rollout, Turn

RUN = RunRecord("run-1", "train", "running", 100.0, {"data": "abc"}, {"train": {"steps": 3}})
ROLLOUT = Rollout("r1", "run-1", row_index=4, group_id="g1", member=0, step=1, started_at=1.5)
TURN = Turn(
    rollout_id="r1",
    sample_id="main",
    ordinal=0,
    parent=None,
    branch_reason=None,
    messages=[{"role": "system", "content": "Count."}, {"role": "user", "content": "1 + 1?"}],
    tools=[{"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": 2}}}],
    response={"role": "assistant", "content": "2"},
    finish_reason="stop",
    prompt_ids=[1, 2],
    completion_ids=[7, 8],
    logprobs=[-0.5, -0.25],
    policy_version=0,
    prompt_tokens=2,
    completion_tokens=2,
    sampling={"temperature": 1.0, "seed": 7},
    model="osmosis-rollout",
    malformed_tool_calls=0,
    latency_ms=12.5,
)


def turn(**changes) -> Turn:
    return replace(TURN, **changes)


def rollout(rollout_id: str = "r1", **changes) -> Rollout:
    return replace(ROLLOUT, rollout_id=rollout_id, samples={}, turns=[], **changes)


def float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]
