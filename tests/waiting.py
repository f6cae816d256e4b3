"""Waiting for what comes, however busy the machine is: a fixed sleep is at times too short."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

SECONDS = 60.0  # only a test that fails waits for so long


async def until(holds: Callable[[], Any]) -> None:
    """Wait for a condition, or a coroutine of one, that has no event; TimeoutError if it never comes."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)
