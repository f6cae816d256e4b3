"""Where the CPU time of a call lies: in the interpreter, in compiled libraries, or in the kernel.

    python bench/gateway_shares.py [--calls 6000]

Linux, with `perf`. The systems of `bench/gateway.py` answer plain calls of 2 kB, each whole prompt new, while
`perf record` samples them. What lies in the interpreter is the most that a compiled core could take away: the
kernel's part and that of SQLite, JSON, hashes and the event loop, which are compiled already, would remain.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import gateway
import uvloop

KINDS = {  # of a shared object's name, the first that fits
    "kernel": r"\[kernel|\[vdso\]",
    "interpreter": r"libpython|^python3?",
    "SQLite": r"^__init__\.cpython|sqlite",
    "JSON": r"orjson",
    "event loop, HTTP parser": r"^loop\.|_asyncio|^parser\.|_http_|reader_c",
    "hashes": r"libcrypto|_blake2|_hashlib|_sha",
    "tokenizer": r"tokenizers",
}


def shares(data: Path) -> Counter[str]:
    """Percent of the samples by kind of code; "other" is the C library, zlib and what else there is."""
    command = ["perf", "report", "-i", str(data), "--no-children", "-g", "none", "--sort", "dso"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: Counter[str] = Counter()
    for percent, name in re.findall(r"^\s*([\d.]+)%\s+(\S+)", report, re.MULTILINE):
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other")
        found[kind] += float(percent)
    return found


async def sampled(system: gateway.System, calls: int, prompts: gateway.Prompts, data: Path) -> Counter[str]:
    """Some calls without the profiler, for their cost, and as many with it."""
    for prefix in ("warm", "cost"):
        await gateway.run_calls(system, [prompts.fresh() for _ in range(calls)], 16, prefix)
    command = ["perf", "record", "-q", "-o", str(data), "-p", str(system.process.pid)]
    perf = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    await asyncio.sleep(0.5)
    await gateway.run_calls(system, [prompts.fresh() for _ in range(calls)], 16, "shares")
    perf.send_signal(signal.SIGINT)
    perf.wait()
    return shares(data)


async def measure(calls: int) -> None:
    prompts = gateway.Prompts(gateway.prose())
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as name:
        folder = Path(name)
        gateway.make_tokenizer(folder / "tokenizer")
        with gateway.systems(folder, ["floor", "provider", "policy"]) as running:
            kinds = [*KINDS, "other"]
            print(f"{'':<10} {'ms a call':>10} " + " ".join(f"{kind:>24}" for kind in kinds))
            for system in running:
                found = await sampled(system, calls, prompts, folder / "perf.data")
                cost = system.cpu_ms[1]
                parts = (f"{found[kind]:5.1f} % = {cost * found[kind] / 100:6.3f} ms" for kind in kinds)
                print(f"{system.name:<10} {cost:10.3f} " + " ".join(f"{part:>24}" for part in parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=6000, help="of each system, three times")
    options = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit("perf is not there; on Debian it is in the package linux-perf")
    uvloop.run(measure(options.calls))


if __name__ == "__main__":
    main()
