"""A long eval by the real command: does its memory stay flat, and does its window waste time?

    python bench/eval.py rows10k [--rows 10000]   # memory of both processes over the rows, rows a second
    python bench/eval.py window [--rows 600]      # wall time against the ideal for that concurrency

The model is a stub in another process (two calls a rollout, a tool in between). `window` gives every rollout
a latency from a long tail (Pareto, seeded); the ideal is list scheduling: each next row begins the moment one
of the places is free, and takes its latency and nothing else. Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LONGEST_SECONDS = 20.0  # of the long tail: one rollout alone shall not be what the wall time is
WARM = 0.3  # of the rows, before the slope is measured
CONFIG = """
[run]
name = "long"
[rollout]
entrypoint = "{agent}"
max_concurrent = {at_once}
[dataset]
path = "rows.jsonl"
[llm]
model = "stub"
base_url = "{url}"
"""


@dataclass(slots=True)
class Memory:
    """Resident MiB of the command and of its rollout server, by how many rows were done."""

    rows: list[int] = field(default_factory=list)
    controller: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    def take(self, rows: int, pid: int) -> None:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            self.rows.append(rows)
            self.controller.append(resident_mib(pid))
            self.server.append(sum(resident_mib(int(child)) for child in children))

    def slope(self, values: Sequence[float]) -> float:
        """KiB a row, by least squares over what came after the warm-up."""
        warm = [i for i, rows in enumerate(self.rows) if rows >= WARM * self.rows[-1]]
        return float(np.polyfit([self.rows[i] for i in warm], [values[i] for i in warm], 1)[0]) * 1024


def resident_mib(pid: int) -> float:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096 / 2**20


@contextmanager
def stub_model() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "bench" / "stub_model.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()


def eval_run(folder: Path, url: str, prompts: Sequence[str], at_once: int) -> tuple[Memory, dict[str, Any]]:
    """The whole command over these rows; its memory, and its report."""
    rows = ({"user_prompt": prompt, "ground_truth": "148"} for prompt in prompts)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    agent = ROOT / "bench" / "agents" / "lean_agent.py"
    (folder / "long.toml").write_text(CONFIG.format(agent=agent, at_once=at_once, url=url))
    command = [sys.executable, "-m", "osmosis_ai", "eval", "run", "long.toml", "--json"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    memory, done, ended = Memory(), 0, threading.Event()

    def sample() -> None:
        while not ended.wait(0.25):
            memory.take(done, process.pid)

    sampler = threading.Thread(target=sample)
    sampler.start()
    line = b"{}"
    for line in process.stdout:  # noqa: B007  the last one is used
        done += 1
        if done == len(prompts):  # what follows is the report, and the end
            ended.set()
    ended.set()
    sampler.join()
    if process.wait() != 0:
        raise SystemExit(f"osmosis eval run ended with {process.returncode}: {line!r}")
    return memory, json.loads(line)


def times(folder: Path) -> tuple[float, list[float]]:
    """Seconds from the first rollout's beginning to the last one's end, and of each rollout."""
    database = apsw.Connection(str(folder / ".osmosis" / "osmosis.db"))
    found = database.execute("SELECT started_at, duration_seconds FROM rollout").fetchall()
    begun, ended = min(at for at, _ in found), max(at + seconds for at, seconds in found)
    return ended - begun, [seconds for _, seconds in found]


def rows10k(folder: Path, url: str, rows: int, at_once: int) -> None:
    started = time.monotonic()
    memory, report = eval_run(folder, url, [f"What is 37 times 4? ({i})" for i in range(rows)], at_once)
    wall, _ = times(folder)
    print(f"{report['graded']} of {rows} rows graded, mean {report['mean']['mean']}, {at_once} at once")
    print(f"{rows / wall:.0f} rows/s; the command took {time.monotonic() - started:.0f} s")
    print("rows done   controller MiB   rollout server MiB")
    for share in (0.05, 0.1, 0.25, 0.5, 0.75, 1.0):
        at = min(range(len(memory.rows)), key=lambda i: abs(memory.rows[i] - share * rows))
        print(f"{memory.rows[at]:>9}   {memory.controller[at]:>14.1f}   {memory.server[at]:>18.1f}")
    controller, server = memory.slope(memory.controller), memory.slope(memory.server)
    print(f"slope after {WARM:.0%} of the rows: controller {controller:.2f} KiB a row, server {server:.2f}")


def ideal(latencies: Sequence[float], at_once: int) -> float:
    """Wall time of list scheduling: [3, 1, 1, 1], two at once -> 3."""
    free = [0.0] * min(at_once, len(latencies))
    for seconds in latencies:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def window(folder: Path, url: str, rows: int, at_once: int, shape: float, seed: int) -> None:
    """Each rollout makes two calls, so each call takes half of its latency."""
    draw = random.Random(seed)
    latencies = [round(min(draw.paretovariate(shape), LONGEST_SECONDS), 3) for _ in range(rows)]
    _, report = eval_run(folder, url, [f"37 times 4? seconds={s / 2:.4f}" for s in latencies], at_once)
    wall, took = times(folder)
    best, batches = ideal(latencies, at_once), sum(map(max, _batches(latencies, at_once)))
    print(f"{report['graded']} of {rows} rows graded, {at_once} at once, seed {seed}")
    print(f"latencies: mean {sum(latencies) / rows:.2f} s, longest {max(latencies):.1f} s")
    print(f"wall {wall:.1f} s, ideal {best:.1f} s: ratio {wall / best:.3f}")
    print(f"in batches of {at_once} it would be {batches:.1f} s: ratio {batches / best:.2f}")
    print(f"a rollout took {(sum(took) - sum(latencies)) / rows * 1000:.0f} ms longer than its model")


def _batches(latencies: Sequence[float], at_once: int) -> Iterator[Sequence[float]]:
    for start in range(0, len(latencies), at_once):
        yield latencies[start : start + at_once]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("section", choices=["rows10k", "window"])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--at-once", type=int)
    parser.add_argument(
        "--shape", type=float, default=1.5, help="of the Pareto distribution; mean 3 s at 1.5"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as name, stub_model() as url:
        if given.section == "rows10k":
            rows10k(Path(name), url, given.rows or 10_000, given.at_once or 64)
        else:
            window(Path(name), url, given.rows or 600, given.at_once or 32, given.shape, given.seed)


if __name__ == "__main__":
    main()
