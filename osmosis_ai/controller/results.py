"""What a rollout server says a rollout came to, read with suspicion: somebody else may have written it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.types import Sample, Status, Turn

if TYPE_CHECKING:
    from osmosis_ai.controller.rollout_server import Body

NO_REWARD = (
    "the rollout server gave no reward (ctx.complete(..., reward=None)), and nothing here computes one: name "
    'a file with a Grader or a function with @osmosis_reward, rollout.grader_entrypoint = "reward.py"'
)

INTERNAL = "internal_error"  # what a rollout server calls a failure of its own
STATUS_OF = {  # who could not serve a call -> what the rollout that failed for it is
    "model": Status.MODEL_ERROR,
    "provider": Status.PROVIDER_ERROR,
    "engine": Status.INFRASTRUCTURE,
    "gateway": Status.INFRASTRUCTURE,
    "store": Status.INFRASTRUCTURE,
}


def failed_status(body: Mapping[str, Any], error: Status, timeout: Status) -> Status:
    """Who failed, by the callback of a phase: the user's code (`error`), its deadline, or the server."""
    by_category = {"timeout": timeout, INTERNAL: Status.INFRASTRUCTURE}
    return by_category.get(str(body.get("err_category")), error)


def finished_sample(body: Body, turns: Sequence[Turn]) -> Body:
    """The sample in the result of a RolloutAgentLoop's server; without messages that of the last call."""
    messages, metrics = body.get("final_messages"), body.get("metrics")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        messages = [*turns[-1].messages, turns[-1].response]
    return {
        "messages": messages,
        "reward": body.get("reward"),
        "metrics": metrics if isinstance(metrics, dict) else {},
    }


def transcripts(body: Body) -> list[Sample]:
    """The samples of a phase that failed, as far as they got, without rewards; what is none is left out."""
    given = body.get("samples")
    raw_samples = given.items() if isinstance(given, dict) else ()
    return [
        Sample(str(name), raw["messages"], None, bool(raw.get("remove_sample")), {}, bool(raw.get("frozen")))
        for name, raw in raw_samples
        if isinstance(raw, dict) and isinstance(raw.get("messages"), list)
    ]


def read_samples(body: Body) -> tuple[list[Sample], str]:
    """Samples of a grader callback, and what is wrong with them ("" when nothing is).

    The rollout server checks the same; a server that somebody else wrote may not.
    """
    samples, problems = [], []
    given = body.get("samples") or {}
    if not isinstance(given, dict) or not all(isinstance(raw, dict) for raw in given.values()):
        return [], f"samples must be an object of objects, got {str(given)[:200]}"
    for sample_id, raw in given.items():
        reward, removed = raw.get("reward"), bool(raw.get("remove_sample"))
        frozen = bool(raw.get("frozen"))
        finite = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
        if not removed and not finite and not (frozen and reward is None):
            problems.append(f"sample {sample_id!r} has reward {reward!r}, which is not a finite number")
        metrics = {
            str(k): float(v) for k, v in (raw.get("metrics") or {}).items() if isinstance(v, int | float)
        }
        samples.append(
            Sample(
                sample_id,
                raw.get("messages") or [],
                float(reward) if finite else None,
                removed,
                metrics,
                frozen,
            )
        )
    left = [sample for sample in samples if not sample.removed]
    if not left:
        problems.append("no sample was left after grading")
    elif not problems and all(sample.reward is None for sample in left):
        problems.append("every sample is frozen and none has a reward")
    return samples, "; ".join(problems)
