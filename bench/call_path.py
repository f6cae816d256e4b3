"""Whose code a rollout runs in its server: calls and CPU time by package, and the way of a call to the model.

    python bench/call_path.py [--rollouts 50] > bench/profiles/call_path.txt

The calculator agents of `examples/`, against the stub model, in lanes as in a rollout server. Every Python
function that is entered counts for the package of its module; C functions count for their caller. The profile
itself takes more time than what it measures: look at the shares, and at what is not there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

from rollouts import CALCULATOR, PROMPT, start_model

from osmosis_ai.rollout import LocalBackend
from osmosis_ai.rollout.backends.base import ExecutionRequest, ExecutionResult
from osmosis_ai.rollout.discovery import load_entrypoint

AGENTS = {"Strands": "strands_agent.py", "OpenAI Agents": "openai_agents_agent.py"}
SENDS = ("osmosis_ai.lean_http", "post")


class Profile(threading.local):
    """A profile function for all threads; the sums are shared, the clock is each thread's own."""

    calls: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    way: tuple[str, ...] = ()  # of the latest call to the model, from the workflow's run()

    def __init__(self) -> None:
        self.package, self.since = "", time.thread_time()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        self.seconds[self.package] += time.thread_time() - self.since
        if event == "call":
            self.package = package_of(frame)
            self.calls[self.package] += 1
            if name_of(frame) == ".".join(SENDS):
                type(self).way = way_of(frame)
        else:
            self.package = package_of(frame.f_back) if frame.f_back else ""
        self.since = time.thread_time()


def package_of(frame: FrameType) -> str:
    root = str(frame.f_globals.get("__name__", "?")).partition(".")[0]
    return "the standard library" if root in sys.stdlib_module_names else root


def name_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}"


def way_of(frame: FrameType) -> tuple[str, ...]:
    """The functions between the agent's start and the request, without those of the event loop."""
    names, found = [], frame
    while found is not None and not name_of(found).startswith("asyncio."):
        names.append(name_of(found))
        found = found.f_back  # type: ignore[assignment]
    return tuple(dict.fromkeys(reversed(names)))


async def run(backend: LocalBackend, url: str, count: int) -> None:
    async def ended(result: ExecutionResult) -> None:
        assert result.succeeded, result.err_message

    for number in range(count):
        request = ExecutionRequest(str(number), PROMPT, "148", chat_completions_url=url, api_key="none")
        await backend.execute(request, ended, ended)


def profile(name: str, url: str, rollouts: int) -> None:
    found = load_entrypoint(str(CALCULATOR / AGENTS[name]))
    parts = {"workflow": found.workflow, "workflow_config": found.workflow_config}
    backend = LocalBackend(**parts, grader=found.grader, grader_config=found.grader_config)  # type: ignore[arg-type]
    asyncio.run(run(backend, url, 3))  # what is imported at the first call
    asyncio.run(backend.close())
    Profile.calls, Profile.seconds = Counter(), Counter()
    threading.setprofile(Profile())  # type: ignore[arg-type]
    backend = LocalBackend(**parts, grader=found.grader, grader_config=found.grader_config)  # type: ignore[arg-type]
    asyncio.run(run(backend, url, rollouts))
    threading.setprofile(None)  # type: ignore[arg-type]
    asyncio.run(backend.close())
    show(name, rollouts)


def show(name: str, rollouts: int) -> None:
    total = sum(Profile.seconds.values())
    print(f"{name}, {rollouts} rollouts of two calls\n\n  package                   calls   share of CPU")
    for package, seconds in Profile.seconds.most_common():
        if package and Profile.calls[package] >= rollouts:
            print(f"  {package:<22} {Profile.calls[package] / rollouts:8.1f} {seconds / total:12.1%}")
    print(f"  {'litellm':<22} {Profile.calls['litellm'] / rollouts:8.1f}\n")
    print("  the way of a call, the event loop left out:")
    for function in Profile.way:
        print(f"    {function}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=50)
    arguments = parser.parse_args()
    model, url = start_model()
    for name in AGENTS:
        profile(name, url, arguments.rollouts)
    assert model.stdin is not None
    model.stdin.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
