"""What a second gateway process brings: the rate of one and of two that share a store, in one run.

    python bench/gateway_workers.py [--quick] [--repetitions 7]

    direct       load -> stub model
    floor        load -> bench/recorder_floor.py -> stub model
    provider     load -> 1 or 2 gateway processes -> stub model      (messages, durable in one SQLite file)
    policy       load -> 1 or 2 gateway processes, each with a stub engine    (exact tokens, the same)

Everything is pinned to two cores, the load and the stub model included, so two processes can at most come to
what is left of the cores: `ceiling` is that, from the CPU time of all that took part. Calls, prompts and
clocks are those of `bench/gateway.py`; all systems take turns, figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gateway as bench
import uvloop

CORES = 2
CONNECTIONS = 64


@dataclass(slots=True)
class Contestant:
    """Something that answers, the processes that do so, and what was measured."""

    name: str
    places: list[tuple[str, str]]  # (URL, key) of each connection
    pids: list[int]
    rate: list[float] = field(default_factory=list)  # calls a second
    cpu_ms: list[float] = field(default_factory=list)  # of its processes, a call
    all_cpu_ms: list[float] = field(default_factory=list)  # with the load and the stub model
    p99_ms: list[float] = field(default_factory=list)


def cpu_seconds(pids: list[int]) -> float:
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


# --- the gateway processes


def worker_parts(request: dict[str, Any]) -> Any:
    """What a gateway process opens; `request` is what `fleet` below asks for."""

    @asynccontextmanager
    async def opened(_: Any) -> AsyncIterator[Any]:
        from osmosis_ai.gateway.worker import Parts
        from osmosis_ai.store.sqlite import SqliteStore

        options = argparse.Namespace(folder=Path(request["folder"]), delay=0.0, upstream=request["upstream"])
        make = bench.policy_target if request["kind"] == "policy" else bench.provider_target
        yield Parts(make(options), SqliteStore(request["database"]), dict)

    return opened(request)


async def fleet(stack: AsyncExitStack, folder: Path, kind: str, count: int, upstream: str) -> Contestant:
    from osmosis_ai.gateway.fleet import Fleet
    from osmosis_ai.gateway.process import Recipe
    from osmosis_ai.gateway.terms import Terms
    from osmosis_ai.store.base import RunRecord
    from osmosis_ai.store.sqlite import SqliteStore
    from osmosis_ai.types import Rollout

    database = folder / f"{kind}-{count}.db"
    store = SqliteStore(database)
    await store.create_run(RunRecord("run", "eval", "running", 0.0, {}, {}))
    parts = {"folder": str(folder), "database": str(database), "kind": kind, "upstream": upstream}
    opened = Fleet(store, Recipe([sys.executable, __file__, "--child"], parts, folder / "log"), count)
    stack.push_async_callback(store.close)
    stack.push_async_callback(opened.stop)
    await opened.start()
    places = []
    for number in range(CONNECTIONS):
        await store.start_rollout(Rollout(f"r{number}", "run", number, f"g{number}", 0))
        access = await opened.admit(f"r{number}", Terms(seed=number))
        places.append((access.base_url, access.key))
    pids = [process.pid for process in opened.processes if process.pid is not None]
    return Contestant(f"{kind} {count}", places, pids)


# --- the run


async def run_calls(one: Contestant, bodies: list[bytes], others: list[int], sample: str) -> None:
    """All bodies, each connection one after the other."""
    todo = iter(enumerate(bodies))
    connections = [(await bench.connect(url), key) for url, key in one.places]
    latencies: list[float] = []
    cpu, rest, wall = cpu_seconds(one.pids), cpu_seconds(others), time.perf_counter()

    async def agent(connection: Any, key: str) -> None:
        for number, body in todo:
            started = time.perf_counter()
            await connection.post(body, key, f"{sample}-{number}")
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(agent(connection, key) for connection, key in connections))
    wall = time.perf_counter() - wall
    own, rest = cpu_seconds(one.pids) - cpu, cpu_seconds(others) - rest
    one.rate.append(len(bodies) / wall)
    one.cpu_ms.append(1000 * own / len(bodies))
    one.all_cpu_ms.append(1000 * (own + rest) / len(bodies))
    one.p99_ms.append(1000 * statistics.quantiles(latencies, n=100)[98])
    for connection, _ in connections:
        connection.close()


async def measure(options: argparse.Namespace, folder: Path) -> list[Contestant]:
    calls, prompts = (400 if options.quick else 3_000), bench.Prompts(bench.prose())
    system = prompts.text_of(3 * bench.PROMPT_CHARS // 4)
    bench.make_tokenizer(folder / "tokenizer")
    with bench.systems(folder, ["direct", "floor"]) as (direct, floor):
        own = [
            Contestant(s.name, [(s.url, s.keys[0])] * CONNECTIONS, [s.process.pid]) for s in (direct, floor)
        ]
        async with AsyncExitStack() as stack:
            for kind in ("provider", "policy"):
                own += [await fleet(stack, folder, kind, count, direct.url) for count in (1, 2)]
            for repetition in range(options.repetitions + 1):  # the first warms up
                for one in own:
                    rest = [os.getpid(), *({direct.process.pid} - set(one.pids))]
                    bodies = [prompts.agent(system) for _ in range(calls)]
                    await run_calls(one, bodies, rest, f"s{repetition}")
                    if repetition == 0:
                        for measured in (one.rate, one.cpu_ms, one.all_cpu_ms, one.p99_ms):
                            measured.clear()
    return own


def report(measured: list[Contestant]) -> None:
    by_name = {one.name: one for one in measured}
    for one in measured:
        rate, cpu, p99 = (statistics.median(values) for values in (one.rate, one.cpu_ms, one.p99_ms))
        line = f"  {one.name:<11} {rate:7.0f} calls/s  {cpu:6.3f} ms CPU a call  p99 {p99:6.1f} ms"
        kind, _, count = one.name.partition(" ")
        if count == "2":
            single = by_name[f"{kind} 1"]
            growth = statistics.median(b / a for a, b in zip(single.rate, one.rate, strict=True))
            ceiling = CORES * statistics.median(single.cpu_ms) / statistics.median(one.all_cpu_ms)
            line += f"   {growth:4.2f} x one process (ceiling {ceiling:4.2f})"
        print(line, flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        from osmosis_ai.gateway.worker import serve

        uvloop.run(serve(int(sys.argv[2]), worker_parts))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer calls: shows what breaks")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as name:
        report(uvloop.run(measure(options, Path(name))))


if __name__ == "__main__":
    main()
