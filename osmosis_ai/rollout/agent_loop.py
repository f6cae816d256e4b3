"""`RolloutAgentLoop`: an agent written as a loop of its own.

    class Solver(RolloutAgentLoop):
        name = "solver"

        def get_tools(self, request):
            return [{"type": "function", "function": {"name": "add", ...}}]

        async def run(self, ctx):
            messages = list(ctx.request.messages)
            result = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(result.message)
            return ctx.complete(messages, reward=1.0)

One instance serves all rollouts. Each rollout runs in a thread with an event loop of its own, so code that
blocks holds up no other; build clients that belong to an event loop inside `run`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from osmosis_ai.rollout.core.schemas import RolloutMetrics, RolloutRequest, wire_tools

if TYPE_CHECKING:
    from osmosis_ai.rollout.context import RolloutContext


@dataclass(slots=True)
class RolloutResult:
    """How a rollout ended; made by `ctx.complete` and `ctx.error`."""

    status: str  # "COMPLETED" or "ERROR"
    final_messages: list[dict[str, Any]]
    finish_reason: str
    error_message: str | None = None
    metrics: RolloutMetrics | None = None
    reward: float | None = None  # None: the reward is computed elsewhere, which is not a reward of 0
    # The exception that `ctx.error` was called for: it says whose failure this is.
    cause: BaseException | None = field(default=None, repr=False, compare=False)


class RolloutAgentLoop(ABC):
    """Subclass it, give it a `name`, and implement `get_tools` and `run`."""

    name: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not _is_abstract(cls) and getattr(cls, "name", None) in (None, ""):
            raise TypeError(f'{cls.__name__} needs a name: name = "my_agent" in the class body')

    @abstractmethod
    def get_tools(self, request: RolloutRequest) -> list[Any]:
        """The tools of this rollout, in OpenAI's function format: dicts or `OpenAIFunctionToolSchema`."""
        raise NotImplementedError

    @abstractmethod
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Run the agent once. Return `ctx.complete(...)` or `ctx.error(...)`; what it raises is an error."""
        raise NotImplementedError

    def get_default_tools(self) -> list[Any]:
        """The tools for a request about nothing."""
        return self.get_tools(
            RolloutRequest(
                rollout_id="discovery", server_url="http://localhost", messages=[], completion_params={}
            )
        )


def _is_abstract(cls: type[Any]) -> bool:
    """Whether a method is left to implement; ABCMeta itself knows only after `__init_subclass__`."""
    names = {name for base in cls.__mro__ for name in getattr(base, "__abstractmethods__", ())}
    return any(
        getattr(getattr(cls, name, None), "__isabstractmethod__", False) for name in names | {*vars(cls)}
    )


def finite_or_none(reward: Any, rollout_id: str) -> float | None:
    """The reward as a float; True and False count as 1.0 and 0.0. Text, NaN and infinity are errors."""
    if reward is None:
        return None
    if not isinstance(reward, Real) or not math.isfinite(value := float(reward)):
        raise ValueError(
            f"the reward of rollout {rollout_id} must be a finite number or None, got {reward!r}"
        )
    return value


def tools_for(loop: RolloutAgentLoop, request: RolloutRequest) -> tuple[list[Any], list[dict[str, Any]]]:
    """What `get_tools` returned, and the same as it goes over the wire.

    Raises what it raises, and TypeError for what is no list of tools.
    """
    tools = loop.get_tools(request)
    if not isinstance(tools, list | tuple):
        raise TypeError(
            f"{type(loop).__name__}.get_tools must return a list, [] when there are no tools; got {tools!r}"
        )
    return list(tools), wire_tools(tools)


def as_result(returned: Any, loop: RolloutAgentLoop, rollout_id: str) -> RolloutResult:
    """What `run` returned, checked. Raises TypeError and ValueError."""
    where = f"{type(loop).__name__}.run"
    if not isinstance(returned, RolloutResult):
        raise TypeError(
            f"{where} returned {returned!r}: return ctx.complete(messages, ...) or ctx.error(message)"
        )
    if returned.status not in ("COMPLETED", "ERROR"):
        raise ValueError(f"{where} returned status {returned.status!r}: it is COMPLETED or ERROR")
    for message in returned.final_messages:
        if not isinstance(message, dict):
            raise TypeError(f"{where} returned a message that is no dict: {message!r}")
    returned.reward = finite_or_none(returned.reward, rollout_id)
    return returned
