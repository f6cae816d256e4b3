"""What is seen while a run works: a live bar on a terminal, plain lines when piped, JSON for scripts."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.transcript import printable
from osmosis_ai.store.base import StepRecord
from osmosis_ai.types import Outcome, Rollout, Status

if TYPE_CHECKING:  # what is written into pipes needs none of it
    from rich.console import Console
    from rich.progress import Progress

SCHEMA_VERSION = 1  # of the lines of --json (lines.py); raised when one of their promises is broken
SHOWN_FAILURES = 3
SHOWN_CHARS = 240  # of a reason
NARROW = 100  # columns: below, the bar is short


class Display:
    """Messages and progress go to standard error, data to standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(
                errors="replace"
            )  # a curve in a terminal without Unicode is ugly, no crash
        self._bar: Progress | None = None
        self._task: Any = None

    @cached_property
    def err(self) -> Console:
        from rich.console import Console

        return Console(stderr=True, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """A line for the person; never data."""
        if self._bar is not None:  # which makes room for it
            self.err.print(printable(text), markup=False, emoji=False)
        else:
            sys.stderr.write(printable(text) + "\n")
            sys.stderr.flush()

    def data(self, value: Mapping[str, Any]) -> None:
        """One JSON line on standard output, with --json; `lines` declares its fields."""
        if self.as_json:
            sys.stdout.write(json_line(value))
            sys.stdout.flush()

    def out(self, text: str) -> None:
        """The result as text on standard output, without --json."""
        if not self.as_json:
            sys.stdout.write(printable(text) + "\n")
            sys.stdout.flush()

    def parts(self, parts: Sequence[str]) -> None:
        """A line of several parts; on a terminal it is broken between them, never inside of one."""
        self.note("\n".join(wrapped(parts, self.columns if sys.stderr.isatty() else None)))

    @property
    def is_live(self) -> bool:
        """Whether a bar is shown, which a line per result would disturb."""
        return self._bar is not None

    @property
    def columns(self) -> int:
        return self.err.width

    @contextmanager
    def bar(self, label: str) -> Iterator[None]:
        """A line at the bottom of a terminal: signs of life, and progress once `expect` has said how much."""
        if self.as_json or not sys.stderr.isatty():  # whatever FORCE_COLOR says: a pipe gets plain lines
            yield
            return
        from osmosis_ai.cli.bar import progress

        with progress(self.err, 24 if self.columns >= NARROW else 10) as self._bar:
            self._task = self._bar.add_task(label, total=None, note="")
            yield
        self._bar = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Without the bar: for a question."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()

    def expect(self, label: str, total: int | None) -> None:
        """From now on the bar is about `total` rollouts, or (None) about something of unknown length."""
        if self._bar is not None:
            self._bar.reset(
                self._task, total=total, description=label, note="" if total is None else f"0/{total}"
            )

    def advance(self, done: int, note: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=note)


def json_line(value: Mapping[str, Any]) -> str:
    """A line with its version, in ASCII: no character of a model reaches the terminal."""
    return json.dumps({"event": value["event"], "schema_version": SCHEMA_VERSION, **value}) + "\n"


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def wrapped(parts: Sequence[str], width: int | None) -> list[str]:
    """Parts, two spaces between them, in lines of at most `width` columns; further lines are indented."""
    lines = [parts[0]]
    for part in parts[1:]:
        if width is None or len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"    {part}")
    return lines


def first_line(reason: str) -> str:
    """Of a reason, what fits a terminal; `osmosis runs show` has all of it."""
    line = printable(reason.split("\n", 1)[0])
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"


class Failures:
    """The first few failures, each in one line: a person learns what is wrong, and is not flooded."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._shown = 0

    def note(self, rollout: Rollout | Outcome, then: str = "") -> None:
        self._shown += 1
        if self._shown > SHOWN_FAILURES:
            return
        self._display.note(
            f"  row {rollout.row_index}: {rollout.status.value}{then}: {first_line(rollout.reason)}"
        )
        if self._shown == SHOWN_FAILURES:
            self._display.note("  further failures are not shown here; see `osmosis runs show`")


class TrainProgress:
    """One line per step, and a bar over the rollouts of the step that runs."""

    def __init__(self, display: Display, rollouts_per_step: int) -> None:
        self._display = display
        self._per_step = rollouts_per_step  # 0: this training makes no rollouts
        self._failures = Failures(display)
        self._steps = 0
        self._first = 0
        self._step = 0
        self._done = 0
        self._started = time.monotonic()

    def on_start(self, last_step: int, steps: int) -> None:
        self._steps, self._first, self._step = steps, last_step, last_step
        self._started = time.monotonic()
        if last_step:
            self._display.note(f"going on after step {last_step} of {steps}")
        self._next_bar()

    def on_rollout(self, rollout: Rollout) -> None:
        if rollout.status is not Status.GRADED:
            self._failures.note(rollout)
        self._done += 1
        learning = "  learning" if self._done == self._per_step else ""
        self._display.advance(self._done, f"{self._done}/{self._per_step} rollouts{learning}")

    def on_retry(self, rollout: Rollout) -> None:
        self._failures.note(rollout, ", tried again")

    def on_step(self, record: StepRecord) -> None:
        self._step, self._done = record.step, 0
        done = record.step - self._first
        left = (time.monotonic() - self._started) / done * (self._steps - record.step)
        self._display.data({"event": "step", "step": record.step, "version": record.version} | record.metrics)
        if not self._display.as_json:
            self._display.parts([*step_parts(record, self._steps), f"left {minutes(left)}"])
        self._next_bar()

    def _next_bar(self) -> None:
        if self._step >= self._steps:
            self._display.expect("saving the policy", None)
        else:
            self._display.expect(f"step {self._step + 1}/{self._steps}", self._per_step or None)


def step_parts(record: StepRecord, steps: int) -> list[str]:
    """One step in one line.

    step  7/40  reward 0.641  signal 6/8 groups  trained 48/64 (16 no_signal)  912 tok/s  audit 4.8e-07  3.4 s
    """
    metrics = record.metrics
    parts = [f"step {record.step:>{len(str(steps))}}/{steps}"]
    if "funnel" in metrics:
        reward = metrics["reward_mean"]
        parts += [
            f"reward {'-' if reward is None else f'{reward:.3f}'}",
            f"signal {metrics['groups_with_signal']}/{metrics['groups']} groups",
            funnel_text(metrics["funnel"]),
            f"{metrics['sampled_tokens_per_second']:,.0f} tok/s",
            f"audit {metrics['audit']['max_difference']:.1e}",
        ]
        if metrics["loss"] is None:
            parts.append("no group has a signal: weights unchanged")
    else:
        parts += [f"loss {metrics['loss']:.4f}", f"{metrics['trained_tokens_per_second']:,.0f} tok/s"]
    return [*parts, f"{metrics['seconds']['step']:.1f} s"]


def funnel_text(funnel: dict[str, Any]) -> str:
    """trained 40/64 (1 workflow_timeout, 23 no_signal): of the rollouts that were generated; it adds up."""
    stages = funnel["stages"]
    losses = ", ".join(
        f"{count['rollouts']} {reason}" if count["rollouts"] else f"{count['tokens']} tokens {reason}"
        for reason, count in funnel["losses"].items()
    )
    text = f"trained {stages['trained']['rollouts']}/{stages['generated']['rollouts']}"
    return text + (f" ({losses})" if losses else "")
