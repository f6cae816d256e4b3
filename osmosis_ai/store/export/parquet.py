"""A run as a Parquet table: one line for each sample; a rollout without samples has one line too."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.errors import UsageError
from osmosis_ai.types import Rollout, Row

COLUMNS = {
    "run_id": "string",
    "rollout_id": "string",
    "row": "int64",
    "member": "int64",  # which of the row's rollouts
    "step": "int64",
    "status": "string",
    "reason": "string",
    "sample_id": "string",
    "reward": "float64",
    "removed": "bool",
    "messages": "string",  # JSON, as the grader saw them
    "metrics": "string",  # JSON
    "turns": "int64",
    "completion_tokens": "int64",
    "started_at": "float64",  # seconds since the epoch
    "duration_seconds": "float64",
    "label": "string",
    "metadata": "string",  # JSON
}
BATCH = 500  # lines of one row group at least


async def write_parquet(path: Path, rollouts: AsyncIterator[Rollout], rows: Mapping[int, Row]) -> int:
    """Write the file; returns how many rollouts are in it. Raises UsageError without pyarrow."""
    pyarrow, writer_of = _pyarrow()
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in _TYPES.items()])
    count = 0
    lines: list[dict[str, Any]] = []
    with writer_of(path, schema) as writer:
        async for rollout in rollouts:
            count += 1
            lines += sample_lines(rollout, rows.get(rollout.row_index))
            if len(lines) >= BATCH:
                writer.write_table(pyarrow.Table.from_pylist(lines, schema))
                lines = []
        writer.write_table(pyarrow.Table.from_pylist(lines, schema))
    return count


_TYPES = {name: {"bool": "bool_"}.get(kind, kind) for name, kind in COLUMNS.items()}


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet").ParquetWriter
    except ImportError as error:
        raise UsageError("--format parquet needs pyarrow: pip install pyarrow") from error


def sample_lines(rollout: Rollout, row: Row | None) -> Iterator[dict[str, Any]]:
    """The lines of one rollout."""
    whole = {
        "run_id": rollout.run_id,
        "rollout_id": rollout.rollout_id,
        "row": rollout.row_index,
        "member": rollout.member,
        "step": rollout.step,
        "status": rollout.status.value,
        "reason": rollout.reason,
        "turns": len(rollout.turns),
        "completion_tokens": rollout.sampled_tokens,
        "started_at": rollout.started_at,
        "duration_seconds": rollout.duration_seconds,
        "label": None if row is None else row.label,
        "metadata": None if row is None or row.metadata is None else json.dumps(row.metadata),
    }
    for sample in rollout.samples.values():
        yield whole | {
            "sample_id": sample.sample_id,
            "reward": sample.reward,
            "removed": sample.removed,
            "messages": json.dumps(sample.messages),
            "metrics": json.dumps(sample.metrics),
        }
    if not rollout.samples:
        yield whole
