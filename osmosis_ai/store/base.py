"""The store seam: what comes to rest, durable before it is acknowledged.

One database holds all runs of a workspace. Every `await`ed write is on disk when it returns; writes that
wait at the same time share one commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, Protocol

from osmosis_ai.types import Outcome, Rollout, Sample, Status, ToolSchema, Turn

RunKind = Literal["eval", "train"]
RunState = Literal["running", "done", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Amendment:
    """What a resumed run was allowed to go on with: the keys of its identity that are not as they were."""

    at: float  # seconds since the epoch; rollouts that began before are of the old inputs
    changes: dict[str, list[Any]]  # key of the identity -> [was, is]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One `osmosis eval run` or `osmosis train run`."""

    run_id: str
    kind: RunKind
    state: RunState
    created_at: float  # seconds since the epoch
    identity: dict[str, Any]  # what must not change when the run is resumed: config, data, model, code
    config: dict[str, Any]  # the resolved configuration
    error: str = ""
    lineage: list[Amendment] = field(
        default_factory=list
    )  # oldest first; empty: all rollouts had one identity

    def lineage_at(self, started_at: float) -> int:
        """How many amendments a rollout that began then had behind it: 0 for the inputs of the first life."""
        return sum(amendment.at <= started_at for amendment in self.lineage)


def name_of(run_id: str, config: Mapping[str, Any]) -> str:
    """What a, a-2, a-3, ... have in common: [run] name, else the name of the config file."""
    named = config.get("run", {}).get("name") or PurePath(config.get("source", "")).stem
    return str(named or run_id)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step of a training run, with its metrics and the checkpoint that holds it."""

    run_id: str
    step: int  # 1, 2, ...
    version: int  # policy version after the step
    checkpoint: str  # path relative to the run's folder; "" when none was written at this step
    metrics: dict[str, Any]
    finished_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Which rollouts to read; empty fields do not filter."""

    run_id: str
    step: int | None = None
    statuses: Sequence[Status] = ()
    row_index: int | None = None
    rollout_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of `osmosis runs list`."""

    run: RunRecord
    rollouts_by_status: Mapping[str, int] = field(default_factory=dict)
    mean_reward: float | None = None
    last_step: int = 0


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    """A rollout that agents have a key of: what a gateway must know to answer its calls."""

    rollout_id: str
    key_digest: bytes  # SHA-256 of the key, which is not stored
    gateway: str  # the one that answers, of those that share the store
    terms: dict[str, Any]  # JSON, the gateway's own
    tools: list[ToolSchema] | None = None  # of calls that bring none; None: not known (yet)
    sealed: bool = False  # no further call counts


@dataclass(frozen=True, slots=True)
class Native:
    """One call as it came over the wire, byte for byte."""

    wire: str  # which API: "chat", "completions", "responses", "messages"
    sent: bytes  # the body of the agent's request
    answered: bytes = b""  # the body of an external model's answer; b"" when the policy answered


class Admissions(Protocol):
    """What a gateway that is started again goes on with. Raises StoreError."""

    async def add(self, record: AdmissionRecord) -> None:
        """The rollout has been started before; it is admitted once."""
        ...

    async def offer_tools(self, rollout_id: str, tools: list[ToolSchema]) -> None:
        """The first offer holds."""
        ...

    async def seal(self, rollout_id: str) -> None: ...

    async def by_key(self, key_digest: bytes) -> AdmissionRecord | None: ...

    async def by_rollout(self, rollout_id: str) -> AdmissionRecord | None: ...

    async def answered(self, rollout_id: str) -> list[tuple[Turn, dict[str, Any] | None]]:
        """The rollout's turns in order, each with what `append_turn` was told of its call."""
        ...


class TurnStore(Protocol):
    """All that a gateway asks of a store, unless it takes up rollouts that another has admitted."""

    async def append_turn(self, turn: Turn, call: str | None = None, native: Native | None = None) -> None:
        """Record one LLM call; `call` is JSON, what the gateway wants to know of it after a restart.

        `native` is the call as it came; several answers to one call share its request.

        Its ordinal must be the rollout's next, its prompt must start with its parent's tokens (see `Turn`),
        its log-probabilities must be float32 values. A rollout that has ended takes no turn: StoreError.
        """
        ...


class Store(TurnStore, Protocol):
    """Runs, rollouts, turns, samples and steps. Raises StoreError when a write cannot be taken."""

    @property
    def admissions(self) -> Admissions: ...

    async def create_run(self, run: RunRecord) -> None: ...

    async def finish_run(self, run_id: str, state: RunState, error: str = "") -> None: ...

    async def resume_run(self, run_id: str) -> int:
        """Take a run up again after its process ended: its state is "running" from now on.

        Rollouts that the dead process left RUNNING end as INFRASTRUCTURE; returns how many. Only the holder
        of the run's lock may call this.
        """
        ...

    async def amend_run(self, run: RunRecord) -> None:
        """Another identity and configuration for the rollouts to come, and a longer lineage that says so."""
        ...

    async def start_rollout(self, rollout: Rollout) -> None:
        """Record that a rollout is about to run (status RUNNING)."""
        ...

    async def end_rollout(
        self, rollout_id: str, status: Status, reason: str, samples: Sequence[Sample], duration_seconds: float
    ) -> bool:
        """The one end of a rollout. Returns False, and changes nothing, when the rollout has ended."""
        ...

    def forget(self, rollout_id: str) -> None:
        """Let go of what is remembered for the rollout's next turn: no more come here, and another process
        may be the one that ends it. `end_rollout` does the same.
        """
        ...

    async def supersede(self, rollout_ids: Sequence[str]) -> int:
        """Rollouts that have ended, whatever their status, no longer count: others take their places.

        They become SUPERSEDED, with their old status in the reason; returns how many. What still runs or
        is superseded already is left as it is. Only the holder of the run's lock may call this.
        """
        ...

    async def finish_step(self, step: StepRecord) -> None:
        """Record a step; one that is done again, after a resume from an earlier checkpoint, is replaced."""
        ...

    async def get_run(self, run_id: str) -> RunRecord | None: ...

    async def run_names(self) -> dict[str, str]:
        """Run id -> the name that was asked for: a-2 -> a. Without any figures, so that it is cheap."""
        ...

    async def list_runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        ...

    async def rollouts(self, where: RolloutFilter, *, turns: bool = True) -> list[Rollout]:
        """Rollouts with samples (and turns, tokens restored to full length), by start time.

        Equal messages are one shared dict: read them, do not change them.
        """
        ...

    async def outcomes(self, where: RolloutFilter) -> list[Outcome]:
        """The same rollouts without messages and tokens: a thousandth of the memory."""
        ...

    async def natives(self, rollout_id: str) -> dict[int, Native]:
        """The rollout's calls as they came, by the ordinal of the turn that answered each."""
        ...

    async def steps(self, run_id: str) -> list[StepRecord]:
        """Finished steps in order."""
        ...

    async def close(self) -> None: ...
