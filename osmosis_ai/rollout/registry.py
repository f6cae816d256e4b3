"""Agent loops by name, for programs that hold several."""

from __future__ import annotations

from osmosis_ai.rollout.agent_loop import RolloutAgentLoop
from osmosis_ai.rollout.core.exceptions import AgentLoopNotFoundError


class AgentLoopRegistry:
    """Agent loops by their `name`."""

    def __init__(self) -> None:
        self._loops: dict[str, RolloutAgentLoop] = {}

    def register(self, loop: RolloutAgentLoop) -> None:
        """Raises ValueError when the name is taken."""
        if loop.name in self._loops:
            raise ValueError(
                f"an agent loop {loop.name!r} is registered already: {self._loops[loop.name]!r}; "
                "unregister it first, or give this one another name"
            )
        self._loops[loop.name] = loop

    def unregister(self, name: str) -> None:
        """Raises AgentLoopNotFoundError."""
        self.get(name)
        del self._loops[name]

    def get(self, name: str) -> RolloutAgentLoop:
        """Raises AgentLoopNotFoundError."""
        try:
            return self._loops[name]
        except KeyError:
            raise AgentLoopNotFoundError(name, list(self._loops)) from None

    def names(self) -> list[str]:
        return sorted(self._loops)


_registry = AgentLoopRegistry()


def register_agent_loop(loop: RolloutAgentLoop) -> None:
    """Register `loop` under its name in this process. Raises ValueError when the name is taken."""
    _registry.register(loop)


def unregister_agent_loop(name: str) -> None:
    """Forget the loop. Raises AgentLoopNotFoundError."""
    _registry.unregister(name)


def get_agent_loop(name: str) -> RolloutAgentLoop:
    """The loop of that name. Raises AgentLoopNotFoundError, which lists those that there are."""
    return _registry.get(name)


def list_agent_loops() -> list[str]:
    """The names of all registered loops."""
    return _registry.names()
