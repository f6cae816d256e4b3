"""The lines that commands print with `--json`: the one place where their fields are declared.

Each line is an object with `event`, `schema_version` and the fields of the types named here, which are the
dataclasses that the command prints, or a TypedDict where it prints something of its own. The JSON Schemas in
`docs/schemas` are made from this table, and a test runs the commands and holds their lines against them.

A new field needs nothing but its declaration. A field that goes, is renamed or changes its type breaks the
programs that read it: raise `display.SCHEMA_VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import (
    Any,
    Literal,
    NotRequired,  # pydantic reads no other before Python 3.12
)

from typing_extensions import TypedDict

from osmosis_ai.cli.dry_run import Setting
from osmosis_ai.cli.grade_session import Change
from osmosis_ai.cli.machine import Check
from osmosis_ai.controller.preflight import Finding
from osmosis_ai.eval.compare import Comparison
from osmosis_ai.eval.plan import Plan
from osmosis_ai.eval.tally import EvalReport
from osmosis_ai.gateway.drift import Break
from osmosis_ai.rollout.validator import ValidationError
from osmosis_ai.store.base import RunRecord, RunSummary
from osmosis_ai.types import Rollout, Row, Status


class Created(TypedDict):
    path: str  # of the project, absolute
    framework: str
    files: list[str]  # relative to it


class Diagnosis(TypedDict):
    healthy: bool
    failed: int
    warned: int


class Validation(TypedDict):
    valid: bool
    kind: str
    name: str | None
    tools: int
    errors: list[ValidationError]
    warnings: list[ValidationError]
    found: dict[str, str]


class TestedRow(TypedDict):
    row_index: int
    success: bool
    status: Status
    error: str | None
    duration_ms: float
    token_usage: int
    reward: float | None
    turns: int


class TestSummary(TypedDict):
    total: int
    passed: int
    failed: int
    total_duration_ms: float
    total_tokens: int


class Listening(TypedDict):
    url: str
    serves: str
    key_needed: bool


class DatasetAbout(TypedDict):
    path: str
    rows: int
    labels: int
    system_prompts: int
    metadata: list[str]
    longest_prompt: int  # characters
    longest_row: int


class NewPolicy(TypedDict):
    policy: str


class RolloutEnded(TypedDict):
    """See docs/metrics.md."""

    rollout_id: str
    row: int
    member: int
    status: Status
    reward: float | None
    reason: str
    turns: int
    prompt_tokens: int
    completion_tokens: int
    tool_errors: int
    duration_seconds: float


class OfRun(TypedDict):
    run_id: str


class OfLineage(TypedDict):
    lineage: int  # how many accepted changes of the run's inputs the rollout had behind it


class Preflight(TypedDict):
    valid: bool
    findings: list[Finding]
    run: NotRequired[str]
    rows: NotRequired[int]
    rollouts: NotRequired[int]


class Clear(TypedDict):
    clear: bool  # the interval of the difference leaves out 0


class Graded(TypedDict):
    run_id: str
    graded_from: str
    rollouts: dict[Status, int]
    changes: list[Change]


class Step(TypedDict):
    step: int
    version: int


class Learnt(TypedDict):
    """Metrics of a step of GRPO; see docs/metrics.md."""

    reward_mean: float | None
    rewards: int
    groups: int
    groups_with_signal: int
    funnel: dict[str, Any]
    training_samples: int
    branches: dict[str, int]
    loss: float | None
    loss_sums: dict[str, float]
    grad_norm: float | None
    learning_rate: float | None
    audit: dict[str, Any]
    seconds: dict[str, float]
    sampled_tokens_per_second: float


class FineTuned(TypedDict):
    """Metrics of a step of fine-tuning; see docs/metrics.md."""

    loss: float
    grad_norm: float
    learning_rate: float
    conversations: int
    trained_tokens: int
    trained_tokens_per_second: float
    seconds: dict[str, float]


class Trained(TypedDict):
    run_id: str
    steps: int
    policy: str  # the folder


class Exported(TypedDict):
    run_id: str
    format: Literal["jsonl", "atif", "parquet"]
    path: str
    count: int


class Imported(TypedDict):
    run_id: str
    rollouts: int


class Call(TypedDict):
    """The bodies as text; `osmosis runs wire ROLLOUT --turn N` writes the bytes."""

    turn: int
    wire: str
    sent: str
    answered: str  # empty when the policy answered


class Deleted(TypedDict):
    runs: list[str]
    would_delete: list[str]  # with --dry-run
    bytes_before: NotRequired[int]  # of the database
    bytes_after: NotRequired[int]


class Completion(TypedDict):
    shell: Literal["bash", "zsh", "fish"]
    script: str


class DryRun(TypedDict):
    settings: list[Setting]
    rows: int
    rollouts: int
    done: int
    workspace: str  # absolute


class ByColumn(TypedDict):
    by: dict[str, EvalReport]  # value of the metadata column of --by -> the report of its rows; else empty


class ConfigSchema(TypedDict):
    schema: dict[str, Any]


class Written(TypedDict):
    run_id: str
    path: str
    rollouts: int
    bytes: int
    redactions: int
    notes: list[str]


@dataclass(frozen=True)
class AdvisedBreak(Break):
    advice: str


class Drift(TypedDict):
    run_id: str
    rollouts: int
    conversations: int
    whole: int
    calls: int
    sampled_tokens: int
    untrainable_tokens: dict[str, int]
    breaks: list[AdvisedBreak]


class SqlRow(TypedDict):
    values: dict[str, str | int | float | None]  # column -> value; bytes as hexadecimal digits


@dataclass(frozen=True)
class Line:
    """One kind of line: its event, and the types whose fields it has beside."""

    event: str
    fields: tuple[type, ...]


PREFLIGHT = (Line("preflight", (Preflight,)),)
STEPS = (Line("step", (Step, Learnt)), Line("step", (Step, FineTuned)))

# command -> the lines that it prints, in the order in which they come
LINES: Mapping[str, tuple[Line, ...]] = {
    "init": (Line("created", (Created,)),),
    "doctor": (Line("check", (Check,)), Line("diagnosis", (Diagnosis,))),
    "validate": (Line("validation", (Validation,)),),
    "test": (Line("row", (TestedRow,)), Line("summary", (TestSummary,))),
    "serve": (Line("listening", (Listening,)),),
    "dataset validate": (Line("dataset", (DatasetAbout,)),),
    "dataset preview": (Line("row", (Row,)),),
    "policy new": (Line("done", (NewPolicy,)),),
    "eval run": (
        Line("dry_run", (OfRun, DryRun)),
        Line("plan", (OfRun, Plan)),
        Line("rollout", (RolloutEnded,)),
        Line("report", (OfRun, EvalReport, ByColumn)),
    ),
    "eval submit": PREFLIGHT,
    "eval compare": (Line("comparison", (Comparison, Clear)),),
    "eval grade": (Line("graded", (Graded,)),),
    "train run": (*STEPS, Line("done", (Trained,))),
    "train submit": PREFLIGHT,
    "runs list": (Line("run", (RunSummary,)),),
    "runs show": (
        Line("run", (RunRecord,)),
        *STEPS,
        Line("rollout", (OfLineage, Rollout)),
        Line("report", (OfRun, EvalReport, ByColumn)),
    ),
    "runs export": (Line("exported", (Exported,)),),
    "runs import": (Line("imported", (Imported,)),),
    "runs wire": (Line("call", (Call,)),),
    "runs delete": (Line("deleted", (Deleted,)),),
    "runs prune": (Line("deleted", (Deleted,)),),
    "config schema": (Line("config_schema", (ConfigSchema,)),),
    "report": (Line("report", (Written,)),),
    "completion": (Line("completion", (Completion,)),),
    "drift": (Line("drift", (Drift,)),),
    "sql": (Line("row", (SqlRow,)),),
}
