"""`Grader`: what the behaviour of a rollout is worth."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Generic, TypeVar

from osmosis_ai.rollout.samples import RolloutSample
from osmosis_ai.rollout.workflow import made

TConfig = TypeVar("TConfig")


@dataclass(frozen=True, slots=True)
class Judge:
    """A model for the grader to ask: an OpenAI-compatible endpoint whose tokens are never trained.

    Any client works: `AsyncOpenAI(base_url=judge.chat_completions_url, api_key=judge.api_key)`. So does an
    Osmosis agent with an OsmosisRolloutModel that is built inside `grade()`.
    """

    chat_completions_url: str
    api_key: str | None = field(default=None, repr=False)
    model: str = "osmosis-rollout"  # the name to ask for; whoever runs the rollout decides what answers


class GraderContext:
    """What a grader is given: the label, the samples, the row's metadata, and a judge if there is one."""

    def __init__(
        self,
        label: str | None = None,
        samples: Mapping[str, RolloutSample] | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        rollout_id: str = "",
        judge: Judge | None = None,
        artifacts_dir: Path | None = None,
    ) -> None:
        self.label = label
        self.samples: dict[str, RolloutSample] = dict(samples or {})
        self.metadata = metadata
        self.rollout_id = rollout_id
        self._judge = judge
        self._artifacts_dir = artifacts_dir

    @property
    def judge(self) -> Judge:
        """The judge's endpoint. A RuntimeError when the run has none."""
        if self._judge is None:
            raise RuntimeError(
                f"rollout {self.rollout_id} has no judge: the run names no model for its grader to ask. Add "
                "[judge] to the configuration, with model and base_url, or a script"
            )
        return self._judge

    @property
    def has_judge(self) -> bool:
        return self._judge is not None

    @property
    def artifacts_dir(self) -> Path | None:
        """The rollout's folder for files, the workflow's too; None when the server keeps none."""
        return made(self._artifacts_dir)

    def get_samples(self) -> dict[str, RolloutSample]:
        return self.samples

    def set_sample_reward(self, sample_id: str, reward: float) -> None:
        """Give the sample its reward, a finite number."""
        sample = self.samples.get(sample_id)
        if sample is None:
            raise ValueError(
                f"rollout {self.rollout_id} has no sample {sample_id!r}; its samples: {self._known()}"
            )
        sample.reward = finite_reward(reward, sample_id, self.rollout_id)

    @property
    def sample(self) -> RolloutSample:
        """The sample of a rollout that has exactly one."""
        if len(self.samples) != 1:
            raise ValueError(
                f"ctx.sample needs exactly one sample, rollout {self.rollout_id} has {len(self.samples)}: "
                f"{self._known()}; use ctx.samples and ctx.set_sample_reward(...)"
            )
        return next(iter(self.samples.values()))

    def set_reward(self, reward: float) -> None:
        """Give the only sample its reward."""
        sample = self.sample
        sample.reward = finite_reward(reward, sample.id, self.rollout_id)

    def _known(self) -> str:
        return ", ".join(repr(name) for name in self.samples) or "none"


def finite_reward(reward: Any, sample_id: str, rollout_id: str) -> float:
    """`reward` as a float; True and False count as 1.0 and 0.0. Text, NaN and infinity are errors."""
    if not isinstance(reward, Real) or not math.isfinite(value := float(reward)):
        raise ValueError(
            f"the reward of sample {sample_id!r} of rollout {rollout_id} must be a finite number, "
            f"got {reward!r}"
        )
    return value


class Grader(ABC, Generic[TConfig]):
    """Subclass it and implement `grade`. One instance is made for each rollout."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> Any:
        """Reward every sample. What it returns is ignored; what it raises fails the rollout."""
        raise NotImplementedError
