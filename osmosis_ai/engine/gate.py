"""Who may use the weights: sampling by many, or a change by one.

sample, sample ...   open
optim_step           closed: completions under way finish, new calls wait, then the weights change
publish              open again, with the new version
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from osmosis_ai.types import PolicyVersion


class Gate:
    """Keeps completions and changes of the weights apart: one version samples all of a completion."""

    def __init__(self) -> None:
        self.version: PolicyVersion = 0  # of the weights
        self._published: PolicyVersion = 0  # that completions come from
        self._sampling = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[PolicyVersion]:
        """Wait until the weights are published; inside, they do not change."""
        while not self._open.is_set():
            await self._open.wait()
        self._sampling += 1
        self._idle.clear()
        try:
            yield self.version
        finally:
            self._sampling -= 1
            if not self._sampling:
                self._idle.set()

    async def shut(self) -> None:
        """Keep new completions out and wait for the last one under way."""
        self._open.clear()
        try:
            await self._idle.wait()
        except asyncio.CancelledError:
            self.reopen_if_unchanged()
            raise

    def reopen_if_unchanged(self) -> None:
        """After a change that failed: the published weights are still the weights."""
        if self.version == self._published:
            self._open.set()

    def publish(self) -> None:
        self._published = self.version
        self._open.set()
