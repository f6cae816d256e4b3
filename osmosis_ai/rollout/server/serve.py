"""`osmosis serve`: user code behind HTTP, on this machine, without an account and without a network.

A RolloutAgentLoop is served by `create_app`, an AgentWorkflow by `create_rollout_server`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from osmosis_ai.errors import UsageError
from osmosis_ai.rollout.agent_loop import RolloutAgentLoop
from osmosis_ai.rollout.config.settings import RolloutSettings
from osmosis_ai.rollout.server.agent_loop_app import create_app
from osmosis_ai.rollout.validator import ValidationResult, validate_agent_loop

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9000
STOP_SECONDS = 3  # for requests that are under way when the server is stopped

Ready = Callable[[str], None]  # gets the URL


class ServeError(UsageError):
    """A server cannot be started like this."""


def serve_agent_loop(
    agent_loop: RolloutAgentLoop,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    validate: bool = True,
    log_level: str = "warning",
    reload: bool = False,
    settings: RolloutSettings | None = None,
    skip_register: bool = True,
    api_key: str | None = None,
    local_debug: bool = False,
    debug_dir: str | Path | None = None,
    on_ready: Ready | None = None,
) -> None:
    """Serve until Ctrl-C. Port 0 takes a free one; `on_ready` is told the URL.

    There is no platform to register with: `skip_register` and `local_debug` ask for what is always so; the
    latter also says that there is no key. Raises ServeError, AgentLoopValidationError.
    """
    if reload:
        raise ServeError("serve_agent_loop: reload=True is not supported; start the server again")
    if not skip_register:
        raise ServeError("serve_agent_loop: skip_register=False: no platform is configured to register with")
    if local_debug and api_key:
        raise ServeError("serve_agent_loop: local_debug=True is without a key; leave out api_key")
    if validate:
        validate_agent_loop(agent_loop).raise_if_invalid()
    app = create_app(agent_loop, settings=settings, api_key=api_key, debug_dir=debug_dir)
    serve_app(app, host=host, port=port, api_key=api_key, log_level=log_level, on_ready=on_ready)


def validate_and_report(agent_loop: Any, verbose: bool = False) -> ValidationResult:
    """Check an agent loop and print what was found."""
    result = validate_agent_loop(agent_loop)
    for line in result.lines(verbose=verbose):
        print(line)  # noqa: T201  what it is for
    return result


def serve_app(
    app: Any,
    *,
    host: str,
    port: int,
    api_key: str | None,
    log_level: str = "warning",
    on_ready: Ready | None = None,
) -> None:
    """Serve an ASGI app until Ctrl-C or SIGTERM; the lifespan of the app tells how its rollouts end."""
    listener = listen(host, port, api_key)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        app, log_level=log_level, access_log=False, timeout_graceful_shutdown=STOP_SECONDS, ws="none"
    )
    _Server(config, url, on_ready).run(sockets=[listener])


def listen(host: str, port: int, api_key: str | None) -> socket.socket:
    """A listener. Raises ServeError when it can be reached from elsewhere and has no key."""
    if not api_key and not is_loopback(host):
        raise ServeError(
            f"a server on {host!r} can be reached from other machines, which could run your code at will: "
            "give it a key (--api-key, or OSMOSIS_API_KEY in the environment), or listen on 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ServeError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another with --port; 0 takes "
            "a free one"
        ) from error


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """Says so when it listens, and listens until the rollouts of a workflow have ended.

    An app says by `state.drain` how it waits for them. That of an agent loop has none: it stops them.
    """

    def __init__(self, config: uvicorn.Config, url: str, on_ready: Ready | None) -> None:
        super().__init__(config)
        self._url = url
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Who fetches results can do so until they are there; a second Ctrl-C does not wait for them."""
        state = getattr(self.config.app, "state", None)
        if (drain := getattr(state, "drain", None)) is not None:
            draining = asyncio.ensure_future(drain())
            while not (draining.done() or self.force_exit):
                await asyncio.wait([draining], timeout=0.1)
            draining.cancel()
        await super().shutdown(sockets)
