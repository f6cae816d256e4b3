"""The funnel of a step: what became of every rollout and every sampled token, adding up to 100 %."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

STAGES = ("generated", "finished", "graded", "signal", "trained")

LOST_BEFORE = {  # reason -> the first stage that the rollout did not reach
    "workflow_error": "finished",
    "workflow_timeout": "finished",
    "no_turns": "finished",
    "model_error": "finished",
    "over_budget": "finished",
    "provider_error": "finished",
    "infrastructure": "finished",
    "cancelled": "finished",
    "superseded": "finished",
    "grader_error": "graded",
    "grader_timeout": "graded",
    "no_signal": "signal",  # all rewards of the group are equal: nothing to learn from
    "lone_survivor": "signal",  # fewer than two rollouts of the group were graded: nothing to compare
    "sample_removed": "trained",  # the author took the sample out
    "frozen": "trained",  # the author froze the agent: it is answered by the policy and not trained
    "not_in_a_sample": "trained",  # a call under a sample id that the grader never saw
    "other_model": "trained",  # answered by an external model, not by the policy
    "too_long": "trained",  # longer than train.max_sample_tokens
}


@dataclass(slots=True)
class Count:
    """A number of rollouts and of sampled tokens."""

    rollouts: int = 0
    tokens: int = 0

    def add(self, rollouts: int, tokens: int) -> None:
        self.rollouts += rollouts
        self.tokens += tokens


@dataclass(slots=True)
class Funnel:
    """Generated = trained + the sum of all losses, in rollouts and in tokens; each loss has a reason.

    Example: 8 rollouts of 10 tokens each; one timed out after 4 tokens, one group of 4 had equal rewards:

        generated 8 (74)   finished 7 (70)   graded 7 (70)   signal 3 (30)   trained 3 (30)
        losses    workflow_timeout 1 (4), no_signal 4 (40)
    """

    generated: Count = field(default_factory=Count)
    trained: Count = field(default_factory=Count)
    losses: dict[str, Count] = field(default_factory=dict)

    def lose(self, reason: str, rollouts: int, tokens: int) -> None:
        if reason not in LOST_BEFORE:
            raise KeyError(f"unknown reason {reason!r}; add it to LOST_BEFORE with the stage it misses")
        self.losses.setdefault(reason, Count()).add(rollouts, tokens)

    def reached(self, stage: str) -> Count:
        """How much reached a stage: what was generated less all that was lost before it."""
        position = STAGES.index(stage)
        count = Count(self.generated.rollouts, self.generated.tokens)
        for reason, lost in self.losses.items():
            if STAGES.index(LOST_BEFORE[reason]) <= position:
                count.add(-lost.rollouts, -lost.tokens)
        return count

    def adds_up(self) -> bool:
        return self.reached("trained") == self.trained

    def stages(self) -> Iterator[tuple[str, Count]]:
        for stage in STAGES:
            yield stage, self.reached(stage)

    def as_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        """Plain numbers for the store and for `--json`."""

        def plain(count: Count) -> dict[str, int]:
            return {"rollouts": count.rollouts, "tokens": count.tokens}

        return {
            "stages": {stage: plain(count) for stage, count in self.stages()},
            "losses": {reason: plain(count) for reason, count in sorted(self.losses.items())},
        }
