"""Turns, rollouts and groups made by hand, for the tests of this folder."""

from __future__ import annotations

from osmosis_ai.types import Group, Rollout, Row, Sample, Status, Turn


def turn(
    ordinal: int,
    prompt_ids: list[int],
    completion_ids: list[int],
    parent: int | None = None,
    *,
    sample_id: str = "main",
    version: int | None = 3,
    rollout_id: str = "r",
) -> Turn:
    return Turn(
        rollout_id=rollout_id,
        sample_id=sample_id,
        ordinal=ordinal,
        parent=parent,
        branch_reason=None,
        messages=[],
        tools=[],
        response={"role": "assistant", "content": ""},
        finish_reason="stop",
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=[-0.1 * token for token in completion_ids],
        policy_version=version,
        prompt_tokens=len(prompt_ids),
        completion_tokens=len(completion_ids),
        sampling={"temperature": 0.7},
        model="osmosis-rollout",
        malformed_tool_calls=0,
        latency_ms=1.0,
    )


def rollout(
    reward: float | None, *, status: Status = Status.GRADED, turns: list[Turn] | None = None, member: int = 0
) -> Rollout:
    turns = [turn(0, [1, 2], [7, 8, 9])] if turns is None else turns
    ids = {t.sample_id for t in turns}
    samples = {} if reward is None else {i: Sample(i, reward=reward) for i in ids}
    return Rollout(f"r{member}", "run", 0, "g", member, status=status, turns=turns, samples=samples)


def group(*rollouts: Rollout) -> Group:
    return Group("g", Row(0, [{"role": "user", "content": "?"}]), list(rollouts))
