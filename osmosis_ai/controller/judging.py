"""The judge: a model that graders ask, behind a gateway of its own.

Its calls are no turns of the rollout and its answers no samples, so nothing of it is ever trained. A rollout
has a key of its own for it, which opens when the workflow has ended and dies with the rollout. It does not
open the policy, and the policy's key does not open the judge.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from osmosis_ai.errors import ProviderDownError, StoreError
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.capture import CallFailure
from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.providers.base import Provider
from osmosis_ai.store.base import Native
from osmosis_ai.types import Turn


@dataclass(frozen=True, slots=True)
class JudgeAccess:
    """What one rollout's grader needs to ask the judge."""

    url: str  # up to and including /v1
    key: str


class JudgeLog:
    """`judge.jsonl` of a run: a line for each call that the judge answered."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def append_turn(self, turn: Turn, call: str | None = None, native: Native | None = None) -> None:
        """Raises StoreError when the disk cannot take it. A judge's gateway is never started again."""
        line = {
            "time": time.time(),  # seconds since the epoch
            "rollout_id": turn.rollout_id,
            "sample_id": turn.sample_id,  # the name of the grader's own agent; "main" without one
            "messages": turn.messages,
            "response": turn.response,
            "model": turn.model,
            "prompt_tokens": turn.prompt_tokens,
            "completion_tokens": turn.completion_tokens,
            "latency_ms": turn.latency_ms,
        }
        try:
            with self._path.open("ab") as file:
                file.write(orjson.dumps(line, default=repr) + b"\n")
        except OSError as error:
            raise StoreError(f"a call of the judge cannot be written to {self._path}: {error}") from error


class Judging:
    """The judge of a run, for all of its rollouts."""

    def __init__(self, provider: Provider, log: Path) -> None:
        self._provider = provider
        self._gateway = Gateway(ProviderTarget(provider), JudgeLog(log))
        self._open: set[str] = set()

    async def start(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port. Raises InfrastructureError."""
        await self._gateway.start(host)

    async def stop(self) -> None:
        await self._gateway.stop()
        await self._provider.close()

    @property
    def down(self) -> ProviderDownError | None:
        """Not None: its endpoint answers nothing at all."""
        return self._provider.state().down

    def access(self) -> JudgeAccess:
        """For one rollout; the key opens nothing before `open`."""
        return JudgeAccess(f"{self._gateway.base_url}/v1", secrets.token_urlsafe(32))

    def open(self, rollout_id: str, key: str, *, place: str, alias: str = "", seconds: float) -> None:
        """The rollout's grader may ask from now on. A scripted judge says the same at the same `place`."""
        if rollout_id in self._open:  # the callback that leads here came again
            return
        seed = int.from_bytes(hashlib.sha256(f"judge/{place}".encode()).digest()[:7], "big")
        self._gateway.admit(rollout_id, seed=seed, expires_seconds=seconds, alias=alias, key=key)
        self._open.add(rollout_id)

    def failure(self, rollout_id: str, *, refusals: bool) -> CallFailure | None:
        """The latest call that the judge did not answer, and no later answer made good.

        With `refusals` also one that its model refused: no room in its context, a content filter.
        """
        if rollout_id not in self._open:
            return None
        counts = self._gateway.counters(rollout_id)
        return counts.failure or (counts.model_refusal if refusals else None)

    async def close(self, rollout_id: str) -> None:
        """The rollout has ended, and its key with it. Safe to call when it was never opened."""
        if rollout_id in self._open:
            self._open.discard(rollout_id)
            await self._gateway.seal(rollout_id)
