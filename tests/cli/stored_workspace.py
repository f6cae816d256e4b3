"""A workspace with eval runs in it, made without a model: what an answer was worth is said by the test."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.datasets import dataset_fingerprint
from osmosis_ai.store.base import RunRecord, StepRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Rollout, Sample, Status, Turn

Rewards = Mapping[int, Sequence[float | None]]  # row -> the reward of each attempt; None: it failed


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Bench:
    """`osmosis` in a folder of its own, with a dataset of four rows in two kinds."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self.root, self._monkeypatch, self._capsys = root, monkeypatch, capsys
        monkeypatch.chdir(root)
        rows = [
            {
                "user_prompt": f"{n} + {n}?",
                "label": str(2 * n),
                "metadata": {"kind": "odd" if n % 2 else "even"},
            }
            for n in range(4)
        ]
        self.dataset = root / "rows.jsonl"
        self.dataset.write_text("\n".join(map(json.dumps, rows)))

    def run(self, *arguments: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["osmosis", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code or 0, *self._capsys.readouterr())  # type: ignore[arg-type]

    def store(self, run_id: str, rewards: Rewards, **changes: Any) -> None:
        """An eval run in which row 3 was answered with "row 3 by RUN"; see `_store` for the changes."""
        asyncio.run(self._store(run_id, rewards, **changes))

    async def _store(
        self,
        run_id: str,
        rewards: Rewards,
        *,
        state: str = "done",
        kind: str = "eval",
        identity: Mapping[str, Any] | None = None,
        answer: str = "row {row} by {run}",
        steps: Sequence[StepRecord] = (),
    ) -> None:
        store = SqliteStore(self.root / ".osmosis" / "osmosis.db")
        attempts = max(len(tries) for tries in rewards.values())
        same = {
            "dataset": dataset_fingerprint(self.dataset)[:16],
            "entrypoint": "c0de",
            "eval.attempts": attempts,
        }
        config = {
            "dataset": {"path": str(self.dataset)},
            "eval": {"attempts": attempts, "pass_threshold": 1.0},
            "rollout": {"entrypoint": "agent.py", "grader": ""},
        }
        record = RunRecord(run_id, kind, "running", 1000.0, {**same, **(identity or {})}, config)  # type: ignore[arg-type]
        await store.create_run(record)
        for row, tries in rewards.items():
            for member, reward in enumerate(tries):
                words = answer.format(row=row, run=run_id)
                await _rollout(store, run_id, row, member, reward, words)
        for step in steps:
            await store.finish_step(step)
        await store.finish_run(run_id, state)  # type: ignore[arg-type]
        await store.close()


async def _rollout(
    store: SqliteStore, run_id: str, row: int, member: int, reward: float | None, words: str
) -> None:
    rollout_id = f"{run_id}.r{row}.m{member}.a0"
    prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{row} + {row}?"}]
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": f'{{"a": {row}}}'}}
    asks = {"role": "assistant", "content": "", "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "c1", "content": str(2 * row)}
    says = {"role": "assistant", "content": words}
    await store.start_rollout(Rollout(rollout_id, run_id, row, f"r{row}", member, started_at=1000.0 + row))
    for ordinal, (messages, response) in enumerate([(prompt, asks), ([*prompt, asks, told], says)]):
        await store.append_turn(_turn(rollout_id, ordinal, messages, response))
    sample = Sample("main", [*prompt, asks, told, says], reward, metrics={"exact": reward or 0.0})
    status = Status.GRADED if reward is not None else Status.GRADER_ERROR
    reason = "" if reward is not None else "Exact.grade raised ValueError: boom"
    await store.end_rollout(rollout_id, status, reason, [sample], 0.25)


def _turn(rollout_id: str, ordinal: int, messages: list[dict[str, Any]], response: dict[str, Any]) -> Turn:
    ids = [1, 2, 3] if ordinal == 0 else [1, 2, 3, 7, 8, 4]
    return Turn(
        rollout_id=rollout_id,
        sample_id="main",
        ordinal=ordinal,
        parent=ordinal - 1 if ordinal else None,
        branch_reason=None,
        messages=messages,
        tools=[{"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": 2}}}],
        response=response,
        finish_reason="tool_calls" if ordinal == 0 else "stop",
        prompt_ids=ids,
        completion_ids=[7, 8],
        logprobs=[-0.5, -0.25],
        policy_version=0,
        prompt_tokens=len(ids),
        completion_tokens=2,
        sampling={"temperature": 1.0, "seed": 7},
        model="osmosis-rollout",
        malformed_tool_calls=0,
        latency_ms=12.5,
    )
