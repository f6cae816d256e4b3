"""What a turn must prove before it is appended: that it is its rollout's next, and continues its parent."""

from __future__ import annotations

import apsw

from osmosis_ai.errors import StoreError
from osmosis_ai.store.columns import PackedTurn, RecordedTurn
from osmosis_ai.store.packing import begin_digest
from osmosis_ai.types import Status, Turn


def status_of(db: apsw.Connection, rollout_id: str) -> str | None:
    status: str | None = db.execute("SELECT status FROM rollout WHERE rollout_id = ?", (rollout_id,)).get
    return status


def not_next(db: apsw.Connection, turn: Turn, name: str) -> StoreError:
    """Why the turn was not taken: the rollout does not run, or another ordinal is next."""
    status = status_of(db, turn.rollout_id)
    if status is None:
        return StoreError(f"{name} cannot be appended: the rollout was never started")
    if status != Status.RUNNING.value:
        return StoreError(f"{name} cannot be appended: the rollout has ended ({status})")
    expected = db.execute(
        "SELECT coalesce(max(ordinal) + 1, 0) FROM turn WHERE rollout_id = ?", (turn.rollout_id,)
    ).get
    return StoreError(f"{name} cannot be appended: the next turn of this rollout is {expected}")


def prove_parent(
    db: apsw.Connection, turn: Turn, packed: PackedTurn, parent: RecordedTurn | None, name: str
) -> tuple[int, bytes]:
    """How many leading prompt tokens are the parent's (0 without one), and the digest of all tokens."""
    total = 0
    prompt_ids = memoryview(packed.prompt_ids)
    if turn.parent is not None:
        sample_id, total, parent_digest = _parent_of(db, turn, parent, name)
        if sample_id != turn.sample_id:
            raise StoreError(
                f"{name} belongs to sample {turn.sample_id!r} but its parent {turn.parent} to {sample_id!r}"
            )
    hashed = begin_digest(prompt_ids[: 4 * total])
    if turn.parent is not None and (len(turn.prompt_ids) < total or hashed.digest() != parent_digest):
        raise StoreError(
            f"{name} does not continue its parent: its {len(turn.prompt_ids)} prompt tokens do not start "
            f"with the {total} tokens of turn {turn.parent}. Record it without a parent, as a new branch."
        )
    hashed.update(prompt_ids[4 * total :])
    hashed.update(packed.completion_ids)
    return total, hashed.digest()


def _parent_of(
    db: apsw.Connection, turn: Turn, parent: RecordedTurn | None, name: str
) -> tuple[str, int, bytes]:
    """Sample, number of tokens and their digest, of the turn's parent."""
    if parent is not None:
        return parent.sample_id, parent.total_tokens, parent.tokens_digest
    row: tuple[str, int, bytes] | None = db.execute(
        "SELECT sample_id, total_tokens, tokens_digest FROM turn WHERE rollout_id = ? AND ordinal = ?",
        (turn.rollout_id, turn.parent),
    ).fetchone()
    if row is None:
        raise StoreError(f"{name} names turn {turn.parent} as its parent, which does not exist")
    return row
