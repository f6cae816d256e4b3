"""What each process that runs rollouts sets up once: open files, garbage collection, its event loop."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import sys
from collections.abc import Callable
from contextlib import suppress

GC_THRESHOLDS = (20_000, 20, 100)  # with the usual 700, 10, 10 a third of the time goes into collecting
UNLIMITED_FILES = 65_536  # where the system names no limit


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """For `asyncio.Runner`: uvloop where there is one (not on Windows), else None, which is asyncio's own.

    A rollout is some thirty socket operations: uvloop takes a quarter of the controller's CPU time away.
    """
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def raise_file_limit() -> None:
    """As many open files as the system allows: a rollout in flight needs four, the usual limit is 1,024."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, UNLIMITED_FILES)
    with suppress(ValueError, OSError):  # macOS has a limit below the one it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@functools.cache
def spare_what_is_loaded() -> None:
    """Once a process: what has been imported and loaded by now is not searched for garbage again and again.

    With `transformers` loaded that is half a million objects; leaving them out takes a third of the CPU time
    of a call away. What rollouts keep is many objects too, and hardly any of it is ever garbage: it is
    searched less often than usual.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def give_memory_back() -> None:
    """To the system, after many rollouts: garbage is looked for seldom, and what is freed is kept for later.

    Takes some 50 ms after a thousand rollouts.
    """
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)
