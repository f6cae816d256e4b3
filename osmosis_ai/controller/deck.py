"""What a dispatcher and its flights share: settings, and the parts that a flight works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from osmosis_ai.controller.callbacks import Callbacks
from osmosis_ai.controller.grading import Grading
from osmosis_ai.controller.judging import Judging
from osmosis_ai.controller.rollout_server import RolloutServer
from osmosis_ai.controller.user_server import START_TIMEOUT_SECONDS
from osmosis_ai.gateway.base import RolloutGateway
from osmosis_ai.gateway.budget import Budget
from osmosis_ai.gateway.call import SamplingDefaults
from osmosis_ai.lean_http import HttpPool
from osmosis_ai.store.base import Store

CALLBACK_GRACE_SECONDS = 60.0  # beyond both deadlines, for the server's own work and its callbacks


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """How rollouts are run."""

    seed: int
    max_concurrent: int
    agent_timeout_seconds: float
    grader_timeout_seconds: float
    retries: int
    sampling: SamplingDefaults
    budget: Budget = field(default_factory=Budget)  # of each rollout

    @property
    def longest_seconds(self) -> float:
        """By then a rollout has ended: a server that had to start, was full, and used both deadlines."""
        waiting = START_TIMEOUT_SECONDS + self.agent_timeout_seconds
        running = self.agent_timeout_seconds + self.grader_timeout_seconds
        return waiting + running + 2 * CALLBACK_GRACE_SECONDS


@dataclass(frozen=True, slots=True)
class Deck:
    """The parts that every flight of a dispatcher works with."""

    server: RolloutServer
    gateway: RolloutGateway
    callbacks: Callbacks
    store: Store
    settings: DispatchSettings
    grading: Grading | None  # of what a server with `one_result` gives no reward
    judging: Judging | None  # whom graders ask
    http: HttpPool  # to the rollout server
    failing: Callable[[], str]  # why the model's endpoint answers nothing; empty as long as it does
