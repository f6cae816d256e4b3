"""The controller's seam to a gateway: one in this process, or several processes that share the store.

Implementations: `InProcess` (below), `fleet.Fleet`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from osmosis_ai.gateway.capture import CallCounts
from osmosis_ai.gateway.terms import Terms
from osmosis_ai.types import ToolSchema, Turn

if TYPE_CHECKING:
    from osmosis_ai.gateway.app import Gateway


@dataclass(frozen=True, slots=True)
class Access:
    """What an agent needs for its LLM calls."""

    base_url: str  # without /v1
    key: str = field(repr=False)


class RolloutGateway(Protocol):
    """Answers the LLM calls of rollouts and records their turns."""

    async def admit(self, rollout_id: str, terms: Terms) -> Access:
        """Open a rollout, which the store has as running, for calls. Raises InfrastructureError."""
        ...

    async def offer_tools(self, rollout_id: str, tools: list[ToolSchema]) -> None:
        """The tools of the rollout's calls that bring none, from now on."""
        ...

    async def seal(self, rollout_id: str) -> list[Turn]:
        """End the rollout's calls; all its turns. None of a rollout that was not admitted."""
        ...

    def counters(self, rollout_id: str) -> CallCounts:
        """What became of the rollout's calls, when it was sealed."""
        ...


class InProcess:
    """A gateway that answers in this process, and ends with it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def admit(self, rollout_id: str, terms: Terms) -> Access:
        expires = None if terms.expires_at is None else terms.expires_at - time.time()
        key = self._gateway.admit(
            rollout_id,
            seed=terms.seed,
            sampling=terms.sampling,
            max_turns=terms.max_turns,
            budget=terms.budget,
            expires_seconds=expires,
            sample_id=terms.sample_id,
            alias=terms.alias,
            awaits_tools=terms.awaits_tools,
        )
        return Access(self._gateway.base_url, key)

    async def offer_tools(self, rollout_id: str, tools: list[ToolSchema]) -> None:
        self._gateway.offer_tools(rollout_id, tools)

    async def seal(self, rollout_id: str) -> list[Turn]:
        try:
            return await self._gateway.seal(rollout_id)
        except KeyError:
            return []

    def counters(self, rollout_id: str) -> CallCounts:
        return self._gateway.counters(rollout_id)
