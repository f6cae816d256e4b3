"""Where a rollout belongs in its run, and whether there is a result there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from osmosis_ai.types import RETRIED, Row, Status


@dataclass(frozen=True, slots=True)
class Place:
    """What a rollout is made for."""

    run_id: str
    step: int
    row: Row
    group_id: str
    member: int


def place_key(place: Place) -> tuple[str, int]:
    return place.group_id, place.member


def place_seed(seed: int, place: Place) -> int:
    """A seed that depends on the place only: another attempt, or a resumed run, samples the same."""
    name = f"{seed}/{place.step}/{place.group_id}/{place.member}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


def is_result(status: Status) -> bool:
    """A result of the user's code or of the grader; what failed for another reason is tried again."""
    return status.is_terminal and status not in RETRIED | {Status.CANCELLED, Status.SUPERSEDED}
