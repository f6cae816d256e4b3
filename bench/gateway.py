"""What a call through the gateway costs, beside the shortest honest recorder and beside direct calls.

    python bench/gateway.py [--quick] [--only plain,streaming,first_byte,...] [--repetitions 5]

Every system is a process of its own on loopback. CPU time is that of its whole process (all threads, user
and system), read from the operating system's clock of that process. In each repetition every system takes its
turn, so that a busy moment of the machine meets all; figures are medians. Absolute times do not travel
between machines; ratios do.

    direct    load -> stub model
    floor     load -> bench/recorder_floor.py -> stub model          (writes a file, no fsync)
    provider  load -> gateway -> stub model                          (messages, durable in SQLite)
    policy    load -> gateway with a stub engine in its own process  (exact tokens, durable in SQLite)

The stub model answers 64 tokens with the ids of prompt and completion. The stub engine gives 64 tokens too;
the gateway renders and tokenises the prompt, parses the answer, and proves each continuation. The tokenizer
is a byte-level BPE with the pre-tokenizer of the usual model families, trained on the standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PROMPT_CHARS = 2_000  # about 512 tokens of the tokenizer below
PROMPT_IDS, COMPLETION_IDS = 512, 64  # that the stub model puts into its answers
TOKEN_SECONDS = 0.002  # between two tokens of a stream
AGENTS = 1024
PATH = "/v1/chat/completions"
FIRST_TOKENS = "first-tokens"  # a file
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the documentation.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


# --- the load: one kept-alive connection an agent, as little Python as possible -------------------------


class Connection(asyncio.Protocol):
    """One request at a time; gives the body of the answer, whole."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None
        self._length = -1  # of the whole response; -1: not known yet, -2: chunked
        self.first_byte_at = 0.0  # time.monotonic(), of the latest response

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._received:
            self.first_byte_at = time.monotonic()
        self._received += data
        if self._length == -1:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._received[:end]).lower()
            found = head.find(b"content-length:")
            self._length = -2 if found < 0 else end + 4 + int(head[found + 15 :].split(b"\r\n", 1)[0])
        chunked_end = self._length == -2 and self._received.endswith(b"0\r\n\r\n")
        if self._waiting is not None and (chunked_end or len(self._received) == self._length):
            self._waiting.set_result(bytes(self._received))

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error or ConnectionResetError("the server hung up"))

    async def post(self, body: bytes, key: str, sample: str) -> bytes:
        self._received.clear()
        self._length = -1
        self._waiting = asyncio.get_running_loop().create_future()
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\nx-sample-id: {sample}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        answer = await self._waiting
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server answered {answer[:500]!r}")
        return answer.split(b"\r\n\r\n", 1)[1]

    def close(self) -> None:
        self._transport.close()


async def connect(url: str) -> Connection:
    host, port = url.removeprefix("http://").split(":")
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    return connection


# --- the systems -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class System:
    """A running server process, and what it was measured to do."""

    name: str
    process: subprocess.Popen[bytes]
    url: str
    keys: list[str]
    db: Path | None = None
    cpu_ms: list[float] = field(default_factory=list)  # per call, one per repetition
    rate: list[float] = field(default_factory=list)  # calls per second
    latency_ms: list[float] = field(default_factory=list)  # of each call

    def cpu_seconds(self) -> float:
        """User and system time of all threads of the process so far."""
        return time.clock_gettime((~self.process.pid << 3) | 2)  # Linux: the CPU clock of another process

    def stop(self) -> None:
        self.process.kill()  # nothing here needs a clean end, the gateway's database least of all
        self.process.wait()


def start(role: str, folder: Path, **options: Any) -> System:
    arguments = [argument for key, value in options.items() for argument in (f"--{key}", str(value))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, __file__, "--role", role, "--folder", str(folder), *arguments],
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{role} did not start")
    started = json.loads(line)
    return System(options.get("name", role), process, started["url"], started["keys"])


def start_floor(folder: Path, upstream: System) -> System:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    script = str(ROOT / "bench" / "recorder_floor.py")
    file = folder / f"floor-{time.time_ns()}.jsonl"
    process = subprocess.Popen(
        [sys.executable, script, upstream.url, str(file), str(listener.fileno())],
        pass_fds=[listener.fileno()],
    )
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    return System("floor", process, url, upstream.keys, db=file)


@contextlib.contextmanager
def systems(
    folder: Path, names: list[str], *, delay: float = 0.0, rollouts: int = AGENTS
) -> Iterator[list[System]]:
    """The named systems, running, with a model that thinks for `delay` seconds."""
    stub = start("stub", folder, delay=delay)
    started = [stub]
    try:
        for name in names:
            if name == "direct":
                continue
            if name == "floor":
                started.append(start_floor(folder, stub))
            else:
                started.append(start(name, folder, delay=delay, upstream=stub.url, rollouts=rollouts))
        stub.name = "direct"
        yield [next(system for system in started if system.name == name) for name in names]
    finally:
        for system in started:
            system.stop()


# --- the bodies ------------------------------------------------------------------------------------------


def prose() -> str:
    """Text enough for prompts that are all different: the documentation of the standard library's modules."""
    library = Path(os.__file__).parent
    files = sorted(library.glob("*.py"))[:60]
    return "\n".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)


def body_of(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return orjson.dumps({"model": "osmosis-rollout", "messages": messages, **more})


class Prompts:
    """Bodies of plain calls. No two have a user message in common; the system message is always the same."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self._repeated: list[bytes] = []

    def text_of(self, chars: int) -> str:
        start = (self._next * 1_009) % (len(self._text) - chars)
        self._next += 1
        return self._text[start : start + chars]

    def fresh(self, **more: Any) -> bytes:
        """2 kB of which nothing was seen before, but for one line of instructions."""
        system = {"role": "system", "content": "You are a helpful assistant."}
        user = {"role": "user", "content": self.text_of(PROMPT_CHARS)}
        return body_of([system, user], **more)

    def group(self, **more: Any) -> bytes:
        """The same, each prompt 8 times: what the rollouts of a group begin with."""
        if not self._repeated:
            self._repeated = [self.fresh(**more)] * 8
        return self._repeated.pop()

    def agent(self, system: str, **more: Any) -> bytes:
        """2 kB as an agent sends them: always the same instructions and tools, and a short question."""
        question = {"role": "user", "content": self.text_of(PROMPT_CHARS // 4)}
        messages = [{"role": "system", "content": system}, question]
        return body_of(messages, tools=[TOOL], **more)


# --- plain and streaming ----------------------------------------------------------------------------------


async def run_calls(system: System, bodies: list[bytes], connections: int, prefix: str) -> None:
    """All bodies, `connections` at a time; each is a sample of its own in its connection's rollout."""
    todo = iter(enumerate(bodies))
    opened = [await connect(system.url) for _ in range(connections)]
    cpu, wall = system.cpu_seconds(), time.perf_counter()

    async def agent(connection: Connection, key: str) -> None:
        for number, body in todo:
            started = time.perf_counter()
            await connection.post(body, key, f"{prefix}-{number}")
            system.latency_ms.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(
        *(agent(connection, system.keys[i % len(system.keys)]) for i, connection in enumerate(opened))
    )
    wall = time.perf_counter() - wall
    system.cpu_ms.append((system.cpu_seconds() - cpu) * 1000 / len(bodies))
    system.rate.append(len(bodies) / wall)
    for connection in opened:
        connection.close()


async def compare(
    running: list[System],
    make: Callable[[], bytes],
    *,
    calls: int,
    connections: int,
    repetitions: int,
) -> None:
    for repetition in range(repetitions + 1):  # the first warms up
        for system in running:
            await run_calls(system, [make() for _ in range(calls)], connections, f"r{repetition}")
            if repetition == 0:
                system.cpu_ms.clear(), system.rate.clear(), system.latency_ms.clear()


@dataclass(slots=True)
class Report:
    """Lines of the table, and whether the targets are met."""

    lines: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        self.say(f"\n{title}")

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def check(self, what: str, value: float, limit: float, *, at_least: bool = False) -> str:
        met = value >= limit if at_least else value <= limit
        sign = ">=" if at_least else "<="
        if not met:
            self.missed.append(f"{what}: {value:.3g}, target {sign} {limit:g}")
        return f"{what} {value:.3g} (target {sign} {limit:g}: {'met' if met else 'MISSED'})"


def cost_lines(
    report: Report,
    running: list[System],
    what: str,
    *,
    ms: float | None,
    ratio: float,
    checked: tuple[str, ...],
) -> None:
    floor = next(statistics.median(system.cpu_ms) for system in running if system.name == "floor")
    for system in running:
        cpu, rate = statistics.median(system.cpu_ms), statistics.median(system.rate)
        latency = statistics.quantiles(system.latency_ms, n=100)
        line = (
            f"  {system.name:<10} {cpu:7.3f} ms CPU a call  {cpu / floor:5.2f} x floor  {rate:6.0f} calls/s  "
            f"p50 {latency[49]:6.1f} ms  p99 {latency[98]:6.1f} ms"
        )
        if system.name in checked:
            line += "  " + report.check(f"{what}: {system.name} / floor", cpu / floor, ratio)
            if ms is not None:
                line += ", " + report.check(f"{what}: {system.name}, ms", cpu, ms)
        report.say(line)


async def plain(report: Report, folder: Path, options: argparse.Namespace) -> None:
    calls = 400 if options.quick else 2_000
    prompts = Prompts(prose())
    system = prompts.text_of(3 * PROMPT_CHARS // 4)
    cases: list[tuple[str, str, Callable[[], bytes]]] = [
        ("group", "plain calls, 2 kB, each prompt for the 8 rollouts of a group", prompts.group),
        (
            "agent",
            "plain calls, 2 kB, the same instructions and tools, a new question",
            lambda: prompts.agent(system),
        ),
        ("new", "plain calls, 2 kB, the whole prompt new each time", prompts.fresh),
    ]
    for label, title, make in cases:
        with systems(folder, ["direct", "floor", "provider", "policy"]) as running:
            await compare(running, make, calls=calls, connections=16, repetitions=options.repetitions)
            report.section(f"{title} (16 at a time)")
            cost_lines(report, running, label, ms=0.5, ratio=2.0, checked=("provider", "policy"))


async def streaming(report: Report, folder: Path, options: argparse.Namespace) -> None:
    calls = 160 if options.quick else 640
    prompts = Prompts(prose())
    system = prompts.text_of(3 * PROMPT_CHARS // 4)
    with systems(folder, ["direct", "floor", "provider", "policy"]) as running:
        await compare(
            running,
            lambda: prompts.agent(system, stream=True),
            calls=calls,
            connections=16,
            repetitions=options.repetitions,
        )
        report.section(
            f"streams of {COMPLETION_IDS} chunks, one each {TOKEN_SECONDS * 1000:g} ms (16 at a time)"
        )
        cost_lines(report, running, "streaming", ms=None, ratio=2.5, checked=("provider", "policy"))


async def first_byte(report: Report, folder: Path, options: argparse.Namespace) -> None:
    streams = 100 if options.quick else 500
    prompts = Prompts(prose())
    system = prompts.text_of(3 * PROMPT_CHARS // 4)
    with systems(folder, ["policy"], rollouts=1) as [policy]:
        connection, arrived = await connect(policy.url), []
        for number in range(streams):
            await connection.post(prompts.agent(system, stream=True), policy.keys[0], f"s{number}")
            arrived.append(connection.first_byte_at)
        connection.close()
    sampled = [float(line) for line in (folder / FIRST_TOKENS).read_text().split()]
    behind = sorted(1000 * (b - a) for a, b in zip(sampled, arrived, strict=True))
    report.section("from the engine's first token to the client's first byte (one stream at a time)")
    p50, p99 = behind[len(behind) // 2], behind[len(behind) * 99 // 100]
    report.say(
        f"  policy     p50 {p50:6.3f} ms  p99 {p99:6.3f} ms  " + report.check("first byte: p50", p50, 5)
    )


# --- many agents with a slow model ------------------------------------------------------------------------


async def agents(report: Report, folder: Path, options: argparse.Namespace) -> None:
    calls = AGENTS * (4 if options.quick else 8)
    prompts = Prompts(prose())
    system = prompts.text_of(3 * PROMPT_CHARS // 4)
    with systems(folder, ["direct", "floor", "provider", "policy"], delay=1.0) as running:
        await compare(
            running,
            lambda: prompts.agent(system),
            calls=calls,
            connections=AGENTS,
            repetitions=1 if options.quick else 2,
        )
        report.section(f"{AGENTS} agents, a model that takes 1 s")
        direct = statistics.median(running[0].rate)
        for one in running:
            rate, cpu = statistics.median(one.rate), statistics.median(one.cpu_ms)
            p99 = statistics.quantiles(one.latency_ms, n=100)[98] - 1000
            line = (
                f"  {one.name:<10} {rate:7.0f} calls/s  {100 * rate / direct:5.1f} % of direct  "
                f"{cpu:7.3f} ms CPU a call  p99 added {p99:6.1f} ms"
            )
            if one.name in ("policy", "provider"):
                share = 100 * rate / direct
                line += "  " + report.check(f"agents: {one.name}, % of direct", share, 90, at_least=True)
            report.say(line)


# --- growing turns and what they take on disk -----------------------------------------------------------


@dataclass(slots=True)
class Conversation:
    """What one growing conversation cost, turn by turn."""

    cpu_ms: list[float] = field(default_factory=list)
    body_bytes: list[int] = field(default_factory=list)


async def converse(
    system: System, key: str, sample: str, first: str, turns: int, next_text: Callable[[], str]
) -> Conversation:
    messages: list[dict[str, Any]] = [{"role": "user", "content": first}]
    connection, spent = await connect(system.url), Conversation()
    for _ in range(turns):
        body = body_of(messages)
        before = system.cpu_seconds()
        answer = await connection.post(body, key, sample)
        await asyncio.sleep(0.002)  # let it finish what it does behind the answer
        spent.cpu_ms.append((system.cpu_seconds() - before) * 1000)
        spent.body_bytes.append(len(body))
        messages.append(orjson.loads(answer)["choices"][0]["message"])
        messages.append({"role": "user", "content": next_text()})
    connection.close()
    return spent


async def growing(report: Report, folder: Path, options: argparse.Namespace) -> None:
    conversations, turns = (2, 50) if options.quick else (5, 50)
    prompts = Prompts(prose())
    with systems(folder, ["floor", "policy"]) as running:
        spent: dict[str, list[Conversation]] = {}
        for number in range(conversations + 1):
            for system in running:
                first, key = prompts.text_of(128_000), system.keys[number % len(system.keys)]
                one = await converse(system, key, f"grow{number}", first, turns, lambda: prompts.text_of(100))
                if number:
                    spent.setdefault(system.name, []).append(one)
    report.section(f"a prompt of 128 kB and {turns} turns of 0.4 kB each, one at a time")
    for name, all_spent in spent.items():
        per_turn = [statistics.median(one.cpu_ms[turn] for one in all_spent) for turn in range(turns)]
        early, late = statistics.median(per_turn[1:11]), statistics.median(per_turn[-10:])
        one = all_spent[0]
        early_bytes, late_bytes = sum(one.body_bytes[1:11]), sum(one.body_bytes[-10:])
        line = (
            f"  {name:<10} first {per_turn[0]:7.2f} ms  turns 2-11 {early:6.3f} ms  41-50 {late:6.3f} ms  "
            f"bytes x {late_bytes / early_bytes:.2f}  CPU x {late / early:.2f}"
        )
        if name == "policy":
            line += "  " + report.check(
                "growing: CPU growth / bytes growth", late / early / (late_bytes / early_bytes), 1.15
            )
        report.say(line)


async def disk(report: Report, folder: Path, options: argparse.Namespace) -> None:
    prompts, turns = Prompts(prose()), 50
    with systems(folder, ["floor", "policy"], rollouts=1) as running:
        sizes = {}
        for system in running:
            started = await converse(
                system, system.keys[0], "disk", prompts.text_of(64_000), turns, lambda: prompts.text_of(1_100)
            )
            sizes[system.name] = (system, started)
    # Both processes were killed: opening the database brings back what stands in its write-ahead log.
    floor_system, spent = sizes["floor"]
    assert floor_system.db is not None
    floor_bytes = floor_system.db.stat().st_size
    again = sum(spent.body_bytes)
    import apsw

    path = folder / "policy.db"
    db = apsw.Connection(str(path))
    db.execute("VACUUM")
    db.pragma("wal_checkpoint", "truncate")
    total, ids = db.execute(
        "SELECT max(total_tokens), sum(4 * (total_tokens - completion_tokens)) FROM turn"
    ).fetchone()
    db.close()
    size = path.stat().st_size
    report.section(f"what {turns} turns up to {total} tokens take on disk")
    report.say(f"  floor, a line a call                     {floor_bytes:>10,} bytes")
    report.say(f"  each prompt again: text                  {again:>10,} bytes")
    report.say(f"  each prompt again: token ids, 4 bytes    {ids:>10,} bytes")
    report.say(
        f"  the gateway's database                   {size:>10,} bytes  1/{(again + ids) / size:.1f} of text "
        f"and ids, 1/{again / size:.1f} of the text alone, 1/{floor_bytes / size:.1f} of the floor  "
        + report.check("disk: times smaller", (again + ids) / size, 20, at_least=True)
    )


# --- the server processes -----------------------------------------------------------------------------------


class StubModel(asyncio.Protocol):
    """A chat completions endpoint that answers the same 64 tokens, after `delay` seconds or as a stream."""

    def __init__(self, delay: float, whole: bytes, chunks: list[bytes]) -> None:
        self._delay, self._whole, self._chunks = delay, whole, chunks
        self._received = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        length = int(head[head.find(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
        if len(self._received) < end + 4 + length:
            return
        streams = self._received.find(b'"stream":true', end) > 0
        self._received.clear()
        loop = asyncio.get_running_loop()
        if streams:
            self._streaming = loop.create_task(self._stream())
        elif self._delay:
            loop.call_later(self._delay, self._transport.write, self._whole)
        else:
            self._transport.write(self._whole)

    async def _stream(self) -> None:
        for chunk in self._chunks:
            await asyncio.sleep(TOKEN_SECONDS)
            self._transport.write(chunk)


def stub_answer() -> tuple[bytes, list[bytes]]:
    """The HTTP bytes of the plain answer and of each event of the streamed one."""
    ids = [1000 + i for i in range(COMPLETION_IDS)]
    text = " word" * COMPLETION_IDS
    usage = {"prompt_tokens": PROMPT_IDS, "completion_tokens": COMPLETION_IDS, "total_tokens": 576}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    tokens = {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * COMPLETION_IDS}}
    body = orjson.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "stub",
            "prompt_token_ids": list(range(PROMPT_IDS)),
            "choices": [{**choice, **tokens}],
            "usage": usage,
        }
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    events = [
        b"data: " + orjson.dumps(_chunk({"content": " word"}, token_ids=[token_id])) + b"\n\n"
        for token_id in ids
    ]
    events += [
        b"data: " + orjson.dumps({**_chunk({}, finish_reason="stop"), "usage": usage}) + b"\n\n",
        b"data: [DONE]\n\n",
    ]
    start_stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    framed = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return head + body, [start_stream + framed[0], *framed[1:-2], framed[-2] + framed[-1] + b"0\r\n\r\n"]


def _chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "stub",
        "choices": [choice],
    }


async def serve_stub(options: argparse.Namespace) -> None:
    whole, chunks = stub_answer()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: StubModel(options.delay, whole, chunks), "127.0.0.1", 0, backlog=4096
    )
    _started(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", ["none"])
    await asyncio.Event().wait()


class StubEngine:
    """Samples the same 64 tokens, after `delay` seconds; one each 2 ms when somebody listens.

    When it had the first token of each stream stands in the file `first_tokens`.
    """

    def __init__(self, token_ids: list[int], delay: float, first_tokens: Path) -> None:
        from osmosis_ai.engine.base import Completion

        self._delay = delay
        self._first_tokens = first_tokens.open("w", buffering=1)
        self._completion = Completion(token_ids, [-0.5] * len(token_ids), "stop", 0)

    async def sample(self, prompt_ids: Any, sampling: Any, on_token: Any = None) -> Any:
        if self._delay:
            await asyncio.sleep(self._delay)
        if on_token is not None:
            await asyncio.sleep(TOKEN_SECONDS)
            self._first_tokens.write(f"{time.monotonic()}\n")
            on_token(self._completion.token_ids[0])
            for token_id in self._completion.token_ids[1:]:
                await asyncio.sleep(TOKEN_SECONDS)
                on_token(token_id)
        return self._completion


async def serve_gateway(options: argparse.Namespace) -> None:
    from osmosis_ai.gateway.app import Gateway
    from osmosis_ai.store.base import RunRecord
    from osmosis_ai.store.sqlite import SqliteStore
    from osmosis_ai.types import Rollout

    path = options.folder / f"{options.role}.db"
    for old in options.folder.glob(f"{options.role}.db*"):
        old.unlink()
    store = SqliteStore(path)
    await store.create_run(RunRecord("run", "train", "running", 0.0, {}, {}))
    target = policy_target(options) if options.role == "policy" else provider_target(options)
    gateway = Gateway(target, store)
    await gateway.start()
    keys = []
    for number in range(options.rollouts):
        await store.start_rollout(Rollout(f"rollout-{number}", "run", number, f"group-{number}", 0))
        keys.append(gateway.admit(f"rollout-{number}", seed=number))
    _started(gateway.base_url, keys)
    await asyncio.Event().wait()


def policy_target(options: argparse.Namespace) -> Any:
    from osmosis_ai.engine.base import EngineInfo
    from osmosis_ai.gateway.render import TemplateRenderer
    from osmosis_ai.gateway.targets import PolicyTarget

    renderer = TemplateRenderer(options.folder / "tokenizer")
    info = EngineInfo(
        version=0,
        vocab_size=8000,
        max_context=10**6,
        num_parameters=0,
        num_trainable=0,
        device="cpu",
        arithmetic="float32",
        eos_token_ids=renderer.end_ids,
    )
    token_ids = renderer.encode(" ".join(prose()[5_000:9_000].split()))[: COMPLETION_IDS - 1]
    first_tokens = options.folder / FIRST_TOKENS
    engine: Any = StubEngine([*token_ids, renderer.end_ids[0]], options.delay, first_tokens)
    return PolicyTarget(engine, info, renderer)


def provider_target(options: argparse.Namespace) -> Any:
    from osmosis_ai.gateway.targets import ProviderTarget
    from osmosis_ai.providers.openai_compatible import OpenAICompatibleProvider

    return ProviderTarget(OpenAICompatibleProvider(options.upstream + "/v1", "stub", most=100_000))


def _started(url: str, keys: list[str]) -> None:
    print(json.dumps({"url": url, "keys": keys}), flush=True)


def make_tokenizer(folder: Path) -> None:
    """Byte-level BPE behind the pre-tokenizer of the usual model families, 8,000 tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from osmosis_ai.engine.policy import chat_template

    pieces = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pieces), behavior="isolated"), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([prose()], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = chat_template()
    fast.save_pretrained(folder)


# --- the command ------------------------------------------------------------------------------------------


CASES: dict[str, Callable[[Report, Path, argparse.Namespace], Awaitable[None]]] = {
    "plain": plain,
    "agents": agents,
    "streaming": streaming,
    "first_byte": first_byte,
    "growing": growing,
    "disk": disk,
}
ROLES = {"stub": serve_stub, "policy": serve_gateway, "provider": serve_gateway}


async def measure(options: argparse.Namespace) -> Report:
    report = Report()
    report.say(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs; medians of {options.repetitions}")
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as name:
        folder = Path(name)
        make_tokenizer(folder / "tokenizer")
        for case in options.only:
            await CASES[case](report, folder, options)
    return report


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="fewer calls, for CI: shows what breaks, not what costs"
    )
    parser.add_argument("--only", default=",".join(CASES), type=lambda names: names.split(","))
    parser.add_argument("--repetitions", type=int, default=0, help="default 5, or 2 with --quick")
    parser.add_argument("--role", choices=list(ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--delay", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=int, default=AGENTS, help=argparse.SUPPRESS)
    parser.add_argument("--upstream", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.repetitions = options.repetitions or (2 if options.quick else 5)
    unknown = set(options.only) - set(CASES)
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    return options


def main() -> None:
    options = read_options()
    random.seed(0)
    if options.role:
        with contextlib.suppress(KeyboardInterrupt):
            uvloop.run(ROLES[options.role](options))
        return
    report = uvloop.run(measure(options))
    print(f"\n{len(report.missed)} targets missed" if report.missed else "\nall targets met")
    for missed in report.missed:
        print(f"  {missed}")
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
