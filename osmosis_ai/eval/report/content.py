"""What a report says about a run: figures, charts, and its conversations in chunks of JSON.

The page opens quickly because it reads a chunk when one of its conversations is looked at, and no sooner.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.errors import UsageError
from osmosis_ai.eval.conversations import Conversation, conversations_of, model_seconds, reasoning_of
from osmosis_ai.eval.report.charts import (
    Chart,
    Curve,
    by_block,
    by_column,
    curve,
    funnel,
    histogram,
    training_funnel,
)
from osmosis_ai.eval.report.redact import Redactor
from osmosis_ai.eval.run import summarise
from osmosis_ai.eval.statistics import Estimate
from osmosis_ai.eval.stored import StoredRun, column_of, dataset_rows, lineage_note, read_run, text_of
from osmosis_ai.store.base import RolloutFilter, StepRecord, Store
from osmosis_ai.types import Message, Rollout, Row, Sample, Status, Turn

CHUNK = 100  # rollouts whose conversations are one block of JSON
MAX_COLUMNS = 4  # metadata columns that get a chart and a filter
SHOWN_PROMPT = 140  # characters of a prompt in the list
NOT_FINISHED = frozenset(
    {Status.WORKFLOW_ERROR, Status.WORKFLOW_TIMEOUT, Status.NO_TURNS, Status.MODEL_ERROR, Status.OVER_BUDGET,
     Status.PROVIDER_ERROR, Status.INFRASTRUCTURE, Status.CANCELLED, Status.SUPERSEDED}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One number at the top of the page."""

    name: str
    value: str
    note: str = ""


@dataclass(slots=True)
class Content:
    """Everything that the template needs; all text in it is redacted and none of it is markup."""

    title: str
    facts: list[tuple[str, str]]
    figures: list[Figure]
    charts: list[Chart]
    curves: list[Curve]
    notes: list[str]
    index: dict[str, Any]  # the list of rollouts, for the script of the page
    chunks: list[dict[str, Any]]
    config: str
    redactions: int = 0


@dataclass(slots=True)
class _Totals:
    turns: int = 0
    tokens: int = 0
    malformed: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, rollout: Rollout) -> None:
        self.turns += len(rollout.turns)
        self.tokens += rollout.sampled_tokens
        self.malformed += sum(turn.malformed_tool_calls for turn in rollout.turns)
        self.seconds.append(rollout.duration_seconds)


async def read_content(
    store: Store, run_id: str, environment: Mapping[str, str], dataset: Path | None = None
) -> Content:
    """Read a run for its report; conversations come from the store a chunk at a time."""
    run = await read_run(store, run_id)
    steps = await store.steps(run_id)
    redact = Redactor(environment)
    rows, notes = _rows(run, dataset)
    if mixed := lineage_note(run.record, [rollout.started_at for rollout in run.rollouts]):
        notes.append(mixed)
    columns = _columns(run, rows)
    totals = _Totals()
    chunks: list[dict[str, Any]] = []
    listed: list[list[Any]] = []
    for start in range(0, len(run.rollouts), CHUNK):
        ids = [rollout.rollout_id for rollout in run.rollouts[start : start + CHUNK]]
        full = {r.rollout_id: r for r in await store.rollouts(RolloutFilter(run_id, rollout_ids=ids))}
        chunk = _Chunk(redact)
        for rollout_id in ids:
            totals.add(full[rollout_id])
            chunk.add(full[rollout_id], rows.get(full[rollout_id].row_index))
            listed.append(_listed(full[rollout_id], redact))
        chunks.append(chunk.plain())
    index = {
        "kind": run.record.kind,
        "passThreshold": _pass_threshold(run),
        "chunk": CHUNK,
        "rollouts": listed,
        "columns": {
            redact(name): {str(row): redact(value) for row, value in column.items() if row in run.rows}
            for name, column in columns.items()
        },
    }
    content = Content(
        title=run_id,
        facts=_facts(run, redact),
        figures=_figures(run, totals),
        charts=_charts(run, columns, steps),
        curves=_curves(steps),
        notes=[redact(note) for note in notes],
        index=index,
        chunks=chunks,
        config=redact(json.dumps(redact.json(run.record.config), indent=2, ensure_ascii=False)),
    )
    content.redactions = redact.count
    return content


def _rows(run: StoredRun, dataset: Path | None) -> tuple[dict[int, Row], list[str]]:
    """The dataset's rows for labels and groups; a note when the file is not what it was, or not there."""
    try:
        return dataset_rows(run.record, dataset), []
    except UsageError as error:
        if dataset is not None:
            raise
        return {}, [f"Labels and metadata are not shown. {error}"]


def _columns(run: StoredRun, rows: dict[int, Row]) -> dict[str, dict[int, str]]:
    """The metadata columns that split the run's rows into a few groups."""
    used = {index: row for index, row in rows.items() if index in run.rows}
    names = sorted({key for row in used.values() for key in row.metadata or {}})
    columns = {name: column_of(used, name) for name in names}
    few = {name: column for name, column in columns.items() if 2 <= len(set(column.values())) <= 12}
    return dict(list(few.items())[:MAX_COLUMNS])


def _pass_threshold(run: StoredRun) -> float:
    return float(run.record.config.get("eval", {}).get("pass_threshold", 1.0))


def _facts(run: StoredRun, redact: Redactor) -> list[tuple[str, str]]:
    record = run.record
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created_at))
    facts = [("kind", record.kind), ("state", record.state), ("started", when)]
    facts += [(key, str(record.identity[key])) for key in ("model", "dataset") if key in record.identity]
    if record.error:
        facts.append(("error", record.error))
    return [(name, redact(value)) for name, value in facts]


def _figures(run: StoredRun, totals: _Totals) -> list[Figure]:
    attempts = int(run.record.config.get("eval", {}).get("attempts", 1))
    report = summarise(run.rollouts, attempts, _pass_threshold(run))
    figures = []
    if report.mean is not None:
        figures.append(Figure(_mean_name(run), f"{report.mean.mean:.3f}", _interval(report.mean)))
    if run.record.kind == "eval":
        for rates in report.pass_rates:
            figures.append(Figure(f"pass@{rates.k}", f"{rates.at.mean:.3f}", _interval(rates.at)))
    failed = sum(report.failures.values())
    words = ", ".join(f"{count} {status}" for status, count in sorted(report.failures.items()))
    figures.append(Figure("graded", f"{report.graded:,}", f"of {len(run.rollouts):,}, {report.rows:,} rows"))
    figures.append(Figure("failed", f"{failed:,}", words))
    figures.append(Figure("sampled tokens", f"{totals.tokens:,}", f"in {totals.turns:,} turns"))
    if totals.seconds:
        ordered = sorted(totals.seconds)
        tail = ordered[int(0.95 * (len(ordered) - 1))]
        figures.append(
            Figure("rollout time", f"{ordered[len(ordered) // 2]:.2f} s", f"median; 95 % under {tail:.2f} s")
        )
    if totals.malformed:
        figures.append(Figure("malformed tool calls", f"{totals.malformed:,}"))
    return figures


def _mean_name(run: StoredRun) -> str:
    return "mean reward" if run.record.kind == "eval" else "mean reward, all steps"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return estimate.why_no_interval
    return f"{estimate.low:.3f} to {estimate.high:.3f} ({estimate.confidence:.0%}, {estimate.method})"


def _charts(
    run: StoredRun, columns: Mapping[str, Mapping[int, str]], steps: Sequence[StepRecord]
) -> list[Chart]:
    rewards = run.rewards
    charts = [by_column(name, rewards, column) for name, column in columns.items()]
    if not any(charts):
        charts.append(by_block(rewards))
    charts.append(histogram([reward for tries in rewards.values() for reward in tries]))
    if steps:
        charts.append(training_funnel([step.metrics for step in steps]))
    else:
        charts.append(_eval_funnel(run))
    return [chart for chart in charts if chart is not None]


def _eval_funnel(run: StoredRun) -> Chart | None:
    threshold = _pass_threshold(run)
    rewards = [reward for tries in run.rewards.values() for reward in tries]
    lost = Counter(rollout.status.value for rollout in run.rollouts if rollout.reward is None)
    stages = [
        ("run", len(run.rollouts)),
        ("finished", sum(rollout.status not in NOT_FINISHED for rollout in run.rollouts)),
        ("graded", len(rewards)),
        ("passed", sum(reward >= threshold for reward in rewards)),
    ]
    words = ", ".join(f"{count} {status}" for status, count in lost.items())
    meaning = f"passed: a reward of at least {threshold:g}"
    return funnel("Rollouts", stages, f"{meaning}; lost: {words}" if words else meaning)


def _curves(steps: Sequence[StepRecord]) -> list[Curve]:
    numbers = [step.step for step in steps]
    wanted = (("reward_mean", "Mean reward by step"), ("loss", "Loss by step"))
    found = [curve(title, numbers, [step.metrics.get(name) for step in steps]) for name, title in wanted]
    return [one for one in found if one is not None]


# --- conversations


def _listed(rollout: Rollout, redact: Redactor) -> list[Any]:
    """[row, step, member, status, reward, turns, tokens, seconds, the prompt's first words]"""
    return [
        rollout.row_index,
        rollout.step,
        rollout.member,
        rollout.status.value,
        rollout.reward,
        len(rollout.turns),
        rollout.sampled_tokens,
        round(rollout.duration_seconds, 3),
        redact(_prompt(rollout))[:SHOWN_PROMPT],
    ]


def _prompt(rollout: Rollout) -> str:
    """The first line of what the user asked."""
    messages = rollout.turns[0].messages if rollout.turns else _sample_messages(rollout)
    asked = next((text_of(message) for message in messages if message.get("role") == "user"), "")
    return asked.strip().split("\n", 1)[0][: 4 * SHOWN_PROMPT]


def _sample_messages(rollout: Rollout) -> list[Message]:
    return next((sample.messages for sample in rollout.samples.values()), [])


class _Chunk:
    """Conversations of some rollouts; a message that several share is in it once."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._numbers: dict[str, int] = {}
        self._messages: list[dict[str, Any]] = []
        self._rollouts: list[dict[str, Any]] = []

    def plain(self) -> dict[str, Any]:
        return {"messages": self._messages, "rollouts": self._rollouts}

    def add(self, rollout: Rollout, row: Row | None) -> None:
        plain: dict[str, Any] = {
            "id": rollout.rollout_id,
            "reason": self._redact(rollout.reason),
            "seconds": [round(rollout.duration_seconds, 3), round(model_seconds(rollout), 3)],
            "conversations": [self._conversation(rollout, one) for one in conversations_of(rollout)]
            or [self._sample(name, sample) for name, sample in rollout.samples.items()],
        }
        if row is not None:
            plain["label"] = None if row.label is None else self._redact(row.label)
            plain["metadata"] = self._redact.json(row.metadata or {})
        self._rollouts.append(plain)

    def _conversation(self, rollout: Rollout, one: Conversation) -> dict[str, Any]:
        """`answers`: [place among the messages, seconds, prompt tokens, completion tokens, finish, ...]"""
        return {
            **self._sample(one.leaf.sample_id, rollout.samples.get(one.leaf.sample_id), one.messages),
            "policyVersion": one.leaf.policy_version,
            "branch": self._redact(one.branch),
            "answers": [[place, *self._answer(turn)] for place, turn in one.turns.items()],
        }

    def _answer(self, turn: Turn) -> list[Any]:
        return [
            round(turn.latency_ms / 1000, 3),
            turn.prompt_tokens,
            turn.completion_tokens,
            self._redact(turn.finish_reason),
            turn.malformed_tool_calls,
        ]

    def _sample(
        self, name: str, sample: Sample | None, messages: Sequence[Message] | None = None
    ) -> dict[str, Any]:
        if messages is None:
            messages = [] if sample is None else sample.messages
        return {
            "name": self._redact(name),
            "reward": None if sample is None else sample.reward,
            "metrics": {} if sample is None else sample.metrics,
            "policyVersion": None,
            "branch": "",
            "answers": [],
            "messages": [self._number(message) for message in messages],
        }

    def _number(self, message: Message) -> int:
        key = json.dumps(message, sort_keys=True, default=str)
        if key not in self._numbers:
            self._numbers[key] = len(self._messages)
            self._messages.append(self._message(message))
        return self._numbers[key]

    def _message(self, message: Message) -> dict[str, Any]:
        """{"role", "text", "reasoning", "calls": [[name, arguments]]}; what is empty is left out."""
        calls = [_call(call) for call in message.get("tool_calls") or []]
        plain: dict[str, Any] = {"role": self._redact(str(message.get("role", "?")))}
        for key, text in (("text", _words(message)), ("reasoning", reasoning_of(message))):
            if text:
                plain[key] = self._redact(text)
        if calls:
            plain["calls"] = [[self._redact(name), self._redact(arguments)] for name, arguments in calls]
        return plain


def _call(call: Any) -> tuple[str, str]:
    function = call.get("function", {}) if isinstance(call, dict) else {}
    return str(function.get("name", "?")), str(function.get("arguments", ""))


def _words(message: Message) -> str:
    """The text; content of other kinds (images, a framework's blocks) as JSON."""
    content = message.get("content")
    text = text_of(message)
    if isinstance(content, list) and any(
        not (isinstance(part, dict) and isinstance(part.get("text"), str)) for part in content
    ):
        return json.dumps(content, ensure_ascii=False)
    return text if isinstance(content, str | list) or content is None else json.dumps(content)
