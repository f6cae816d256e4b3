"""The HTTP servers of user code: `create_rollout_server` for workflows, `create_app` for agent loops."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "create_app": "agent_loop_app",
    "create_rollout_server": "app",
    "serve_agent_loop": "serve",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
