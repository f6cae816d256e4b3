"""What a rollout costs: two calls of a model with a tool in between, 64 at once, everything durable.

    python bench/rollouts.py [--rounds 5] [--rollouts 300]
    python bench/rollouts.py --in-flight 2000     # a model that takes 2 s: rate and memory

Each subject is a process of its own that stays for the whole run; the rounds take turns, so that a busy
moment of the machine meets all of them. CPU time is user plus system of the subject with its child processes,
per rollout; the model is a stub in another process and is not counted. Absolute times do not travel between
machines; ratios of one run do. Needs Linux (/proc), strands-agents, openai-agents.

    floor           asyncio and aiohttp: the same two calls, the same tool, the same grading
    bare ...        the framework's agent calling the stub with the framework's own OpenAI model class
    osmosis ...     the agent through our rollout server, gateway, store and grader
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 64
SETTLE_SECONDS = 10.0  # until idle lanes and connections have been closed, and memory given back
QUESTION = "What is 37 times 4?"
PROMPT = [{"role": "user", "content": QUESTION}]
Run = Callable[[int], Awaitable[None]]  # so many rollouts, AT_ONCE at a time

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")


# --- the subjects, each in its own process


async def at_once(count: int, one: Callable[[], Awaitable[None]], limit: int = AT_ONCE) -> None:
    left = iter(range(count))

    async def lane() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(lane() for _ in range(min(limit, count))))


def reward_of(answer: str) -> float:
    numbers = re.findall(r"-?\d+", answer)
    return 1.0 if numbers and numbers[-1] == "148" else 0.0


@asynccontextmanager
async def floor(url: str) -> AsyncIterator[Run]:
    """The least that asyncio and aiohttp can do."""
    import aiohttp
    import orjson

    sys.path.insert(0, str(ROOT / "bench" / "agents"))
    from lean_agent import TOOLS, result_of

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def call(messages: list[Any]) -> dict[str, Any]:
            body = orjson.dumps({"model": "stub", "messages": messages, "tools": TOOLS, "max_tokens": 64})
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/chat/completions", data=body, headers=headers) as reply:
                message: dict[str, Any] = orjson.loads(await reply.read())["choices"][0]["message"]
                return message

        async def one() -> None:
            messages: list[Any] = list(PROMPT)
            while True:
                messages.append(await call(messages))
                if not messages[-1].get("tool_calls"):
                    break
                messages.extend(map(result_of, messages[-1]["tool_calls"]))
            assert reward_of(messages[-1]["content"]) == 1.0

        yield lambda count: at_once(count, one)


@asynccontextmanager
async def bare_strands(url: str) -> AsyncIterator[Run]:
    import openai
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    @tool
    def multiply(a: int, b: int) -> int:
        """Multiply two integers."""
        return a * b

    @tool
    def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    client = openai.AsyncOpenAI(base_url=url, api_key="none")

    async def one() -> None:
        agent = Agent(
            name="calculator",
            model=OpenAIModel(client=client, model_id="stub", params={"temperature": 1.0, "max_tokens": 64}),
            tools=[multiply, add],
            messages=[{"role": "user", "content": [{"text": QUESTION}]}],
            callback_handler=None,
        )
        assert reward_of(str(await agent.invoke_async(limits={"turns": 4}))) == 1.0

    yield lambda count: at_once(count, one)


@asynccontextmanager
async def bare_openai_agents(url: str) -> AsyncIterator[Run]:
    import openai
    from agents import Agent, ModelSettings, Runner, function_tool
    from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel

    @function_tool
    def multiply(a: int, b: int) -> int:
        """Multiply two integers."""
        return a * b

    @function_tool
    def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    client = openai.AsyncOpenAI(base_url=url, api_key="none")

    async def one() -> None:
        agent = Agent(
            name="calculator",
            model=OpenAIChatCompletionsModel("stub", client),
            model_settings=ModelSettings(temperature=1.0, max_tokens=64),
            tools=[multiply, add],
        )
        result = await Runner.run(agent, PROMPT, max_turns=4)  # type: ignore[arg-type]
        assert reward_of(result.final_output) == 1.0

    yield lambda count: at_once(count, one)


CONFIG = """
[run]
name = "bench"
[rollout]
entrypoint = "{entrypoint}"
max_concurrent = {at_once}
[dataset]
path = "rows.jsonl"
[llm]
model = "stub"
base_url = "{url}"
"""


@asynccontextmanager
async def osmosis(url: str, entrypoint: Path, limit: int = AT_ONCE) -> AsyncIterator[Run]:
    """An eval as `osmosis eval run` opens it; the first rollout of each round is a new place of the run."""
    from osmosis_ai.config import load_config
    from osmosis_ai.controller.opening import Workspace, open_run
    from osmosis_ai.controller.place import Place
    from osmosis_ai.controller.rollouts import open_rollouts
    from osmosis_ai.types import Row, Status

    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as folder:
        (Path(folder) / "rows.jsonl").write_text(
            json.dumps({"user_prompt": QUESTION, "ground_truth": "148"}) + "\n"
        )
        path = Path(folder) / "bench.toml"
        path.write_text(CONFIG.format(entrypoint=entrypoint, url=url, at_once=limit))
        config = load_config(path)
        async with (
            open_run(config, "eval", Workspace(Path(folder) / "workspace")) as opened,
            open_rollouts(opened, training=False, notify=lambda text: None) as parts,
        ):
            done = 0

            async def run(count: int) -> None:
                nonlocal done
                row = Row(0, PROMPT, "148")
                places = (Place(opened.run_id, 0, row, f"r{n}", 0) for n in range(done, done + count))
                done += count
                async for ended in parts.dispatcher.stream(places):
                    for tried in ended.replaced:
                        print("an attempt failed:", tried.reason, file=sys.stderr)
                    assert ended.rollout.status is Status.GRADED, ended.rollout.reason
                    assert ended.rollout.reward == 1.0

            yield run


CALCULATOR = ROOT / "examples" / "calculator"
LEAN = ROOT / "bench" / "agents" / "lean_agent.py"
LOOP = ROOT / "bench" / "agents" / "loop_agent.py"
SUBJECTS: dict[str, Callable[[str], Any]] = {
    "floor": floor,
    "bare Strands": bare_strands,
    "bare OpenAI Agents": bare_openai_agents,
    "osmosis Strands": lambda url: osmosis(url, CALCULATOR / "strands_agent.py"),
    "osmosis OpenAI Agents": lambda url: osmosis(url, CALCULATOR / "openai_agents_agent.py"),
    "osmosis agent loop": lambda url: osmosis(url, LOOP),
    "osmosis lean": lambda url: osmosis(url, LEAN),
}
TARGETS = {  # subject -> (what it is compared with, the highest accepted ratio of CPU time)
    "osmosis Strands": ("bare Strands", 1.3),
    "osmosis OpenAI Agents": ("bare OpenAI Agents", 1.3),
    "osmosis agent loop": ("floor", 10.0),
    "osmosis lean": ("floor", 10.0),
}


async def subject(name: str, url: str, in_flight: int) -> None:
    """Run so many rollouts as each line of the standard input says, and say what they cost."""
    made = SUBJECTS[name](url) if in_flight == AT_ONCE else osmosis(url, LEAN, in_flight)
    async with made as run:
        await run(AT_ONCE * 2)  # connections, imports, lanes
        gc.collect()
        gc.freeze()
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            count, cpu, started = int(line), cpu_seconds(), time.perf_counter()
            await run(count)
            wall = time.perf_counter() - started
            print(json.dumps({"cpu": (cpu_seconds() - cpu) / count, "rate": count / wall}), flush=True)


def run_like_the_command_line(work: Coroutine[Any, Any, None]) -> None:
    """Ours in the event loop of `osmosis eval run`, the others in asyncio's own."""
    if sys.argv[sys.argv.index("--subject") + 1].startswith("osmosis"):
        from osmosis_ai.cli.options import run_async

        run_async(work)
    else:
        asyncio.run(work)


def processes(root: int) -> list[int]:
    """The process and all that came of it."""
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has just ended
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_seconds() -> float:
    """User and system time of this process and its children, in seconds (of the children to 10 ms)."""
    tick, total = os.sysconf("SC_CLK_TCK"), time.process_time()
    for pid in processes(os.getpid())[1:]:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


# --- the measurement


@dataclass(slots=True)
class Measured:
    """A running subject and what its rounds cost."""

    name: str
    process: subprocess.Popen[str]
    cpu: list[float] = field(default_factory=list)  # seconds per rollout
    rate: list[float] = field(default_factory=list)  # rollouts per second

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with status {self.process.wait()}")
        return line

    def round(self, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = json.loads(self.line())
        self.cpu.append(answer["cpu"])
        self.rate.append(answer["rate"])


def child(*arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def start_model(*options: str) -> tuple[subprocess.Popen[str], str]:
    model = child(str(ROOT / "bench" / "stub_model.py"), *options)
    assert model.stdout is not None
    return model, f"http://127.0.0.1:{int(model.stdout.readline())}/v1"


def memory_of(pid: int) -> int:
    """Resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Usage:
    """Of the controller and the rollout server: memory in bytes, threads, open files."""

    memory: list[int]
    threads: list[int]
    files: list[int]

    @classmethod
    def of(cls, root: int) -> Usage:
        pids = processes(root)
        folders = [Path(f"/proc/{pid}") for pid in pids]
        return cls(
            [memory_of(pid) for pid in pids],
            [len(list((folder / "task").iterdir())) for folder in folders],
            [len(list((folder / "fd").iterdir())) for folder in folders],
        )

    def __str__(self) -> str:
        parts = zip(("controller", "rollout server"), self.memory, self.threads, self.files, strict=True)
        return "; ".join(
            f"{name} {memory / 2**20:.0f} MiB, {threads} threads, {files} files"
            for name, memory, threads, files in parts
        )


def measure_in_flight(in_flight: int, seconds: float, waves: int) -> bool:
    """A model that takes `seconds`: a rollout of two calls takes twice that, so 2,000 end 500 a second.

    Memory: `fresh` after the start, `before` and `after` the waves that are measured, both idle.
    """
    model, url = start_model("--seconds", str(seconds))
    command = [str(Path(__file__).resolve()), "--subject", "osmosis lean", "--url", url]
    one = Measured("osmosis lean", child(*command, "--in-flight", str(in_flight)))
    assert one.line() == "ready\n"
    fresh = Usage.of(one.process.pid)
    one.round(in_flight)  # what an interpreter once took from the system it keeps for the next time
    time.sleep(SETTLE_SECONDS)
    before, most = Usage.of(one.process.pid), Usage([0], [0], [0])
    counting = threading.Thread(target=one.round, args=(in_flight * waves,))
    counting.start()
    while counting.is_alive():
        counting.join(0.5)
        most = max(most, Usage.of(one.process.pid), key=lambda usage: sum(usage.memory))
    time.sleep(SETTLE_SECONDS)
    after = Usage.of(one.process.pid)
    ideal = in_flight / (2 * seconds)
    # The first rollouts start and the last ones end while fewer than `in_flight` are on their way.
    one_core = 1 / one.cpu[1]
    used = sum(most.memory) - sum(fresh.memory)
    print(f"{in_flight} rollouts in flight, a model of {seconds:g} s, {in_flight * waves} rollouts")
    print(f"  rate    {one.rate[1]:.0f}/s of {ideal:.0f}/s ideal; {one.cpu[1] * 1000:.2f} ms of CPU each, ")
    print(f"          so one core could do {one_core:.0f}/s")
    print(f"  fresh   {fresh}\n  before  {before}\n  most    {most}\n  after   {after}")
    print(f"  memory  {used / in_flight / 1024:.0f} KiB per rollout in flight")
    for process in (one.process, model):
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return one.rate[1] >= 0.9 * min(ideal, one_core)


def measure(names: list[str], rounds: int, rollouts: int) -> list[Measured]:
    model, url = start_model()
    measured = []
    for name in names:
        one = Measured(name, child(str(Path(__file__).resolve()), "--subject", name, "--url", url))
        assert one.line() == "ready\n"
        measured.append(one)
    for _ in range(rounds):
        for one in measured:
            one.round(rollouts)
    for one in measured:
        assert one.process.stdin is not None
        one.process.stdin.close()
        one.process.wait()
    assert model.stdin is not None
    model.stdin.close()
    return measured


def table(measured: list[Measured]) -> tuple[str, bool]:
    """The figures as text, and whether every target is met."""
    cpu = {one.name: statistics.median(one.cpu) for one in measured}
    lines = [f"{'subject':<24} {'cpu ms':>8} {'range':>15} {'rollouts/s':>11}   ratio of cpu"]
    met = True
    for one in measured:
        spread = f"{min(one.cpu) * 1000:.2f}..{max(one.cpu) * 1000:.2f}"
        line = f"{one.name:<24} {cpu[one.name] * 1000:8.2f} {spread:>15} {statistics.median(one.rate):11.0f}"
        base, highest = TARGETS.get(one.name, ("", 0.0))
        if base in cpu:
            ratio = cpu[one.name] / cpu[base]
            met = met and ratio <= highest
            verdict = "met" if ratio <= highest else "MISSED"
            line += f"   {ratio:5.2f}  <= {highest:g} x {base}: {verdict}"
        lines.append(line)
    return "\n".join(lines), met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=300, help="per subject and round")
    parser.add_argument("--in-flight", type=int, default=AT_ONCE, help="measure that many with a slow model")
    parser.add_argument("--seconds", type=float, default=2.0, help="with --in-flight: what a call takes")
    parser.add_argument("--waves", type=int, default=4, help="with --in-flight: rollouts per place")
    parser.add_argument("--only", action="append", choices=list(SUBJECTS), help="measure these subjects")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.subject:
        run_like_the_command_line(subject(arguments.subject, arguments.url, arguments.in_flight))
        return
    if arguments.in_flight != AT_ONCE:
        sys.exit(0 if measure_in_flight(arguments.in_flight, arguments.seconds, arguments.waves) else 1)
    text, met = table(measure(arguments.only or list(SUBJECTS), arguments.rounds, arguments.rollouts))
    print(
        f"Python {sys.version.split()[0]}, {AT_ONCE} rollouts at once, medians of {arguments.rounds} rounds"
    )
    print(text)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
