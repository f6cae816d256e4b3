"""`python -m osmosis_ai.rollout.server`: how a controller starts user code as a child process.

One JSON line comes in on stdin (see `Start`), one goes out on stdout: `{"ready": true, "port": ...}` or
`{"ready": false, "error_type": ..., "error": ...}`, where "OSError" is nothing that user code has done. What
user code prints goes to stderr, and to `Start.log_path` when there is one. The process ends when stdin does,
so it never outlives its parent.

A parent that knows the entrypoint before all the rest sends a line `{"preload": entrypoint}` first: importing
an agent framework takes longer than anything that the parent has to do meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

# Nothing phones home; read by LiteLLM and the OpenAI Agents SDK when they are imported.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from osmosis_ai import process
from osmosis_ai.errors import EntrypointError, OsmosisError, UsageError
from osmosis_ai.rollout.backends.local import LocalBackend
from osmosis_ai.rollout.discovery import Scan, entrypoint_of, grader_of, scan_entrypoint
from osmosis_ai.rollout.finished import FinishedConfig, FinishedWorkflow
from osmosis_ai.rollout.server.desk import Desk, DeskSettings
from osmosis_ai.rollout.server.lean import LeanServer
from osmosis_ai.rollout.server.routes import Routes

DRAIN_SECONDS = 1.0  # the parent has closed stdin: it waits for nothing any more
LONGEST_WAIT_SECONDS = 30.0  # for a result
PRELOAD = b'{"preload":'


class Parent:
    """What the parent sends, a line at a time. When its end of the pipe closes, this process ends.

    The pipe is no longer standard input: programs that user code starts would read from it.
    """

    def __init__(self) -> None:
        self.on_end: Callable[[], object] = lambda: os._exit(0)
        self._pipe = os.fdopen(os.dup(0), "rb", buffering=0)  # a buffer's lock would be in the way of the end
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        # A thread, so that an import that hangs does not outlive the parent.
        threading.Thread(target=self._watch, name="osmosis-parent", daemon=True).start()

    def line(self) -> bytes:
        return self._lines.get()

    def _watch(self) -> None:
        for line in self._pipe:
            self._lines.put(line)
        self.on_end()


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
    artifacts_dir: Path | None = None  # absolute folder for the files of rollouts, one folder each
    debug_dir: str | None = None  # folder for what they log
    log_path: str | None = None  # where from now on goes what went to stderr, and what it has got so far


def main() -> None:
    gc.disable()  # of what is imported hardly anything is garbage; looking takes a tenth of the time
    process.raise_file_limit()
    reply = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what user code prints, in Python or below it, is not part of the protocol
    parent = Parent()
    line = parent.line()
    preloaded: Scan | OsmosisError | None = None
    if line.startswith(PRELOAD):
        preloaded = _preload(line)
        line = parent.line()
    try:
        start = Start.model_validate_json(line)
        if start.log_path is not None:
            _log_to(start.log_path)
        backend = _backend(start, _scan(start, preloaded))
        listener = _listen(start)
    except (OsmosisError, ValidationError, OSError) as error:
        parent.on_end = lambda: None  # the exit status says more
        kind = "OSError" if isinstance(error, OSError) else type(error).__name__
        _say(reply, {"ready": False, "error_type": kind, "error": str(error)})
        sys.exit(error.exit_code if isinstance(error, OsmosisError) else 2)
    gc.freeze()
    gc.enable()
    process.spare_what_is_loaded()
    port = listener.getsockname()[1]
    names = {"workflow": backend.workflow_name, "grader": backend.grader_name}
    _say(reply, {"ready": True, "port": port, **names, "max_concurrent": backend.max_concurrency or None})
    with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
        runner.run(_serve(backend, start, listener, parent))
        os._exit(0)  # neither threads that user code blocks nor its tasks hold up the end


def _preload(line: bytes) -> Scan | OsmosisError:
    """What is wrong is said when the parent asks for a start."""
    try:
        return scan_entrypoint(orjson.loads(line)["preload"])
    except OsmosisError as error:
        return error


def _scan(start: Start, preloaded: Scan | OsmosisError | None) -> Scan:
    if isinstance(preloaded, OsmosisError):
        raise preloaded
    if preloaded is not None and preloaded.entrypoint == start.entrypoint:
        return preloaded
    return scan_entrypoint(start.entrypoint)


def _log_to(path: str) -> None:
    """From now on what is printed goes to the end of the file, and what was printed until now before it."""
    until_now = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 2)
    os.dup2(log, 1)
    os.close(log)
    os.lseek(until_now, 0, os.SEEK_SET)
    with suppress(OSError):  # the disk is full: what the user's code does matters more
        while text := os.read(until_now, 2**16):
            os.write(2, text)
    os.ftruncate(until_now, 0)  # the parent reads what is left here when we do not get so far
    os.close(until_now)


def _backend(start: Start, scan: Scan) -> LocalBackend:
    if start.graded_sample is not None:
        grader, grader_config = grader_of(scan, start.grader)
        return LocalBackend(
            workflow=FinishedWorkflow,
            workflow_config=FinishedConfig(sample_id=start.graded_sample),
            grader=grader,
            grader_config=grader_config,
            debug_dir=start.debug_dir,
        )
    found = entrypoint_of(
        scan,
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


async def _serve(backend: LocalBackend, start: Start, listener: socket.socket, parent: Parent) -> None:
    """Until the parent ends, or SIGTERM."""
    desk = Desk(backend, DeskSettings(artifacts_root=start.artifacts_dir))
    server = LeanServer(Routes(desk, api_key=start.api_key, longest_wait_seconds=LONGEST_WAIT_SECONDS))
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    # Ctrl-C in a terminal reaches this process too; the parent decides what it means.
    signal.signal(signal.SIGINT, lambda *_: None)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    parent.on_end = lambda: loop.call_soon_threadsafe(ended.set)
    await server.start(listener)
    await ended.wait()
    await desk.drain(DRAIN_SECONDS)
    await server.stop()


if __name__ == "__main__":
    main()
