"""A report of 10,000 rows: how long it takes to write, and to open in headless Chromium.

python bench/report.py [FOLDER]      keeps the report and two screenshots in FOLDER
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from osmosis_ai.eval.report.content import read_content
from osmosis_ai.eval.report.page import page
from osmosis_ai.store.base import RunRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Rollout, Sample, Status, Turn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "cli"))
from chromium import BINARY, chromium

ROWS = 10_000
WORDS = "The train leaves at noon, so it arrives after the meeting has begun; take the earlier one. "


async def store_rows(store: SqliteStore) -> None:
    """Two turns a row, about 1.5 kB of text that no other row has."""
    await store.create_run(RunRecord("big", "eval", "running", time.time(), {"model": "stub"}, {}))
    limit = asyncio.Semaphore(512)
    await asyncio.gather(*(store_row(store, row, limit) for row in range(ROWS)))
    await store.finish_run("big", "done")


async def store_row(store: SqliteStore, row: int, limit: asyncio.Semaphore) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "search", "arguments": f'{{"query": "train {row}"}}'},
    }
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "c", "content": f"result {row}: " + WORDS * 8}
    says = {"role": "assistant", "content": f"answer {row}: " + WORDS * 8}
    prompt = [
        {"role": "system", "content": "You are a careful assistant. " * 20},
        {"role": "user", "content": f"Question {row}: when does the train leave?"},
    ]
    async with limit:
        name = f"big.r{row}.m0.a0"
        await store.start_rollout(Rollout(name, "big", row, f"r{row}", 0, started_at=time.time()))
        for ordinal, (messages, answer) in enumerate([(prompt, asks), ([*prompt, asks, told], says)]):
            await store.append_turn(stub_turn(name, ordinal, messages, answer))
        sample = Sample("main", [*prompt, asks, told, says], float(row % 3 != 0))
        await store.end_rollout(name, Status.GRADED, "", [sample], 1.0 + row % 7)


def stub_turn(rollout_id: str, ordinal: int, messages: list[dict], response: dict) -> Turn:
    return Turn(
        rollout_id, "main", ordinal, ordinal - 1 if ordinal else None, None, messages, [], response, "stop",
        [], [], [], None, 300, 120, {}, "stub", 0, 5.0,
    )  # fmt: skip


async def main(folder: Path) -> None:
    store = SqliteStore(folder / "osmosis.db")
    try:
        began = time.perf_counter()
        await store_rows(store)
        print(f"stored {ROWS} rows in {time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        html = page(await read_content(store, "big", {}))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        seconds = time.perf_counter() - began
        print(f"report: {seconds:.1f} s, {len(html) / 1e6:.1f} MB, peak memory {peak:.0f} MB")
    finally:
        await store.close()
    file = folder / "report.html"
    file.write_bytes(html)
    if BINARY is None:
        print("Chromium is not installed: not opened")
        return
    for name, width, height in (("desktop", 1200, 1300), ("phone", 390, 1300)):
        await opened(folder, file, name, width, height)


async def opened(folder: Path, file: Path, name: str, width: int, height: int) -> None:
    async with chromium(folder / f"profile-{name}") as tab:
        began = time.perf_counter()
        await tab.open(file, width=width, height=height)
        loaded = time.perf_counter() - began
        paint = await tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        ready = await tab.evaluate("Number(document.documentElement.dataset.ready)")
        print(
            f"{name}: first paint {paint or 0:.0f} ms, list usable {ready} ms, loaded {1000 * loaded:.0f} ms"
        )
        began = time.perf_counter()
        await tab.evaluate(
            "document.getElementById('search').value = 'answer 9999:';"
            "document.getElementById('search').dispatchEvent(new Event('input', {bubbles: true}))"
        )
        await tab.until("document.getElementById('found').textContent.startsWith('1 of')")
        print(f"{name}: full text search over all rows {1000 * (time.perf_counter() - began):.0f} ms")
        await tab.evaluate("document.querySelector('#list button').click()")
        (folder / f"{name}.png").write_bytes(await tab.screenshot())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(Path(folder)))
