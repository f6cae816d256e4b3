"""What is seen while a run works: a live bar on a terminal, plain lines when piped, JSON for scripts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from osmosis_ai.store.base import StepRecord
from osmosis_ai.types import Rollout, Status


class Display:
    """Messages and progress go to standard error, data to standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: Any = None

    def note(self, text: str) -> None:
        """A line for the person; never data."""
        self.err.print(Text(text))

    def data(self, value: Any) -> None:
        """One JSON line on standard output, with --json."""
        if self.as_json:
            sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
            sys.stdout.flush()

    def out(self, text: str) -> None:
        """The result as text on standard output, without --json."""
        if not self.as_json:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[None]:
        """A progress bar that `advance` moves; only on a terminal."""
        if not self.err.is_terminal or self.as_json:
            yield
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.err, transient=True) as self._bar:
            self._task = self._bar.add_task(label, total=total, note="")
            yield
        self._bar = None

    def advance(self, label: str | None = None, note: str | None = None, total: int | None = None) -> None:
        if self._bar is not None:
            if total is not None:
                self._bar.reset(self._task, total=total)
            else:
                self._bar.advance(self._task)
            if note is not None:
                self._bar.update(self._task, note=note)
            if label is not None:
                self._bar.update(self._task, description=label)


class EvalProgress:
    """done/total, mean reward and failures so far."""

    def __init__(self, display: Display, total: int) -> None:
        self._display = display
        self._total = total
        self._rewards: list[float] = []
        self._failed: dict[str, int] = {}
        self._last_line = time.monotonic()

    def on_rollout(self, rollout: Rollout) -> None:
        if rollout.reward is not None:
            self._rewards.append(rollout.reward)
        elif rollout.status is not Status.GRADED:
            self._failed[rollout.status.value] = self._failed.get(rollout.status.value, 0) + 1
            if sum(self._failed.values()) <= 3:
                first = rollout.reason.splitlines()[0] if rollout.reason else ""
                self._display.note(f"  row {rollout.row_index}: {rollout.status.value}: {first}")
        self._display.advance(note=self._note())
        # when piped: one line every few seconds, not one per rollout
        if not self._display.err.is_terminal and time.monotonic() - self._last_line > 5:
            self._last_line = time.monotonic()
            done = len(self._rewards) + sum(self._failed.values())
            self._display.note(f"  {done}/{self._total} rollouts  {self._note()}")

    def _note(self) -> str:
        mean = f"reward {sum(self._rewards) / len(self._rewards):.3f}" if self._rewards else ""
        failed = " ".join(f"{count} {status}" for status, count in self._failed.items())
        return f"{mean} {failed}".strip()


class TrainProgress:
    """One line per step, and a bar over the rollouts of the step that runs."""

    def __init__(self, display: Display, rollouts_per_step: int) -> None:
        self._display = display
        self._per_step = rollouts_per_step
        self._steps = 0
        self._first = 0
        self._step = 0
        self._started = time.monotonic()

    def on_start(self, last_step: int, steps: int) -> None:
        self._steps, self._first, self._step = steps, last_step, last_step
        self._started = time.monotonic()
        if last_step:
            self._display.note(f"going on after step {last_step} of {steps}")
        self._next_bar()

    def on_rollout(self, rollout: Rollout) -> None:
        self._display.advance()

    def on_step(self, record: StepRecord) -> None:
        self._step = record.step
        done = record.step - self._first
        left = (time.monotonic() - self._started) / done * (self._steps - record.step)
        self._display.data({"event": "step", "step": record.step, "version": record.version} | record.metrics)
        if not self._display.as_json:
            self._display.note(step_line(record, self._steps, left))
        self._next_bar()

    def _next_bar(self) -> None:
        label = f"step {min(self._step + 1, self._steps)}/{self._steps}"
        self._display.advance(label, note="rollouts", total=self._per_step)


def step_line(record: StepRecord, steps: int, seconds_left: float) -> str:
    """One step in one line.

    step  7/40 | reward 0.641, 6/8 groups with signal | rollouts 64 > 64 > 64 > 48 > 48 (16 no_signal) |
    1,912 tok/s | audit 4.8e-07 | 3.4 s | left 1:52
    """
    metrics = record.metrics
    parts = [f"step {record.step:>{len(str(steps))}}/{steps}"]
    if "funnel" in metrics:
        reward = metrics["reward_mean"]
        parts.append(
            f"reward {'  -  ' if reward is None else f'{reward:.3f}'}, "
            f"{metrics['groups_with_signal']}/{metrics['groups']} groups with signal"
        )
        parts.append(funnel_text(metrics["funnel"]))
        parts.append(f"{metrics['sampled_tokens_per_second']:,.0f} tok/s")
        parts.append(f"audit {metrics['audit']['max_difference']:.1e}")
        if metrics["loss"] is None:
            parts.append("no signal: weights unchanged")
    else:
        parts.append(f"loss {metrics['loss']:.4f}")
        parts.append(f"{metrics['trained_tokens_per_second']:,.0f} tok/s")
    parts.append(f"{metrics['seconds']['step']:.1f} s")
    minutes, seconds = divmod(int(seconds_left), 60)
    parts.append(f"left {minutes}:{seconds:02d}")
    return " | ".join(parts)


def funnel_text(funnel: dict[str, Any]) -> str:
    """rollouts 64 > 63 > 63 > 40 > 40 (1 workflow_timeout, 23 no_signal): generated to trained."""
    stages = " > ".join(str(count["rollouts"]) for count in funnel["stages"].values())
    losses = ", ".join(
        f"{count['rollouts']} {reason}" if count["rollouts"] else f"{count['tokens']} tokens {reason}"
        for reason, count in funnel["losses"].items()
    )
    return f"rollouts {stages}" + (f" ({losses})" if losses else "")
