"""On which terms a rollout's calls are answered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from osmosis_ai.gateway.budget import Budget
from osmosis_ai.gateway.call import SamplingDefaults

DEFAULT_SAMPLE = "main"  # of a call that names no sample


@dataclass(frozen=True, slots=True)
class Terms:
    """What `admit` is told of a rollout; JSON in the store."""

    seed: int
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    max_turns: int | None = None
    budget: Budget = field(default_factory=Budget)
    expires_at: float | None = None  # seconds since the epoch
    sample_id: str = DEFAULT_SAMPLE  # of calls that name none
    alias: str = ""  # a second name of the rollout
    awaits_tools: bool = False  # a call without tools waits for `offer_tools`, and gets those

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Terms:
        read = {"sampling": SamplingDefaults(**data["sampling"]), "budget": Budget.of(data["budget"])}
        return cls(**{**data, **read})

    @property
    def expires_monotonic(self) -> float | None:
        """The expiry on the clock of `time.monotonic()`."""
        return None if self.expires_at is None else self.expires_at - time.time() + time.monotonic()
