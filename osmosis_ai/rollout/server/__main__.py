"""`python -m osmosis_ai.rollout.server`: how a controller starts user code as a child process.

One JSON line comes in on stdin (see `Start`), one goes out on stdout: `{"ready": true, "port": ...}` or
`{"ready": false, "error_type": ..., "error": ...}`. Everything that user code prints goes to stderr. The
process ends when stdin does, so it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Nothing phones home; read by LiteLLM and the OpenAI Agents SDK when they are imported.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

import orjson
import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from osmosis_ai import process
from osmosis_ai.errors import EntrypointError, OsmosisError, UsageError
from osmosis_ai.rollout.backends.local import LocalBackend
from osmosis_ai.rollout.discovery import load_entrypoint, load_grader
from osmosis_ai.rollout.finished import FinishedConfig, FinishedWorkflow
from osmosis_ai.rollout.server.app import create_rollout_server

DRAIN_SECONDS = 1.0  # the parent has closed stdin: it waits for nothing any more


class Start(BaseModel):
    """What the parent asks for."""

    model_config = ConfigDict(extra="forbid")

    entrypoint: str
    workflow: str | None = None
    grader: str | None = None
    workflow_overrides: dict[str, Any] = Field(default_factory=dict)
    require_grader: bool = False
    graded_sample: str | None = None  # grade only: conversations held elsewhere, as this sample
    host: str = "127.0.0.1"
    api_key: str | None = None
    artifacts_dir: str | None = None  # folder for the files of rollouts, one folder each
    debug_dir: str | None = None  # folder for what they log


def main() -> None:
    process.raise_file_limit()
    reply = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what user code prints, in Python or below it, is not part of the protocol
    try:
        start = Start.model_validate_json(sys.stdin.readline())
        backend = _backend(start)
        listener = _listen(start)
    except (OsmosisError, ValidationError, OSError) as error:
        _say(reply, {"ready": False, "error_type": type(error).__name__, "error": str(error)})
        sys.exit(error.exit_code if isinstance(error, OsmosisError) else 2)
    process.spare_what_is_loaded()
    port = listener.getsockname()[1]
    names = {"workflow": backend.workflow_name, "grader": backend.grader_name}
    _say(reply, {"ready": True, "port": port, **names})
    _serve(backend, start, listener)
    os._exit(0)  # threads that user code blocks must not hold up the end


def _backend(start: Start) -> LocalBackend:
    if start.graded_sample is not None:
        grader, grader_config = load_grader(start.entrypoint, start.grader)
        return LocalBackend(
            workflow=FinishedWorkflow,
            workflow_config=FinishedConfig(sample_id=start.graded_sample),
            grader=grader,
            grader_config=grader_config,
            debug_dir=start.debug_dir,
        )
    found = load_entrypoint(
        start.entrypoint,
        workflow=start.workflow,
        grader=start.grader,
        workflow_overrides=start.workflow_overrides,
    )
    if start.require_grader and found.grader is None:
        raise EntrypointError(
            f"no Grader found in {start.entrypoint!r}: define one class there that subclasses "
            "osmosis_ai.rollout.Grader"
        )
    return LocalBackend(
        workflow=found.workflow,
        workflow_config=found.workflow_config,
        grader=found.grader,
        grader_config=found.grader_config,
        debug_dir=start.debug_dir,
    )


def _listen(start: Start) -> socket.socket:
    if not start.api_key and not _is_loopback(start.host):
        raise UsageError(
            f"a rollout server on {start.host!r} can be reached from other machines: give it an api_key"
        )
    family = socket.AF_INET6 if ":" in start.host else socket.AF_INET
    return socket.create_server((start.host, 0), family=family, backlog=4096)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _say(reply: Any, message: dict[str, Any]) -> None:
    reply.write(orjson.dumps(message) + b"\n")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the handlers are those of `_serve`


def _serve(backend: LocalBackend, start: Start, listener: socket.socket) -> None:
    app = create_rollout_server(
        backend=backend,
        api_key=start.api_key,
        drain_seconds=DRAIN_SECONDS,
        artifacts_dir=start.artifacts_dir,
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        backlog=4096,
        timeout_keep_alive=120,  # longer than the controller's pool, so that it closes first
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)

    def watch_parent() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        server.should_exit = True

    # Ctrl-C in a terminal reaches this process too; the parent decides what it means.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    threading.Thread(target=watch_parent, name="osmosis-parent", daemon=True).start()
    with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
