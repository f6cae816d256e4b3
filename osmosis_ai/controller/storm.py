"""When failures that no code of the user's is to blame for are so many that a run had better stop."""

from __future__ import annotations

from collections.abc import Callable

from osmosis_ai.errors import ProviderDownError
from osmosis_ai.types import RETRIED, Rollout

LEAST_IN_A_ROW = 20
LEAST_BUDGET = 100


class Storm:
    """Hears how every attempt ends, also those that will be tried again; `verdict` says why to stop, or "".

    - The endpoint is down: it answers nothing, and calls are not sent any more.
    - So many attempts failed in a row, nothing coming to a result between them, that it is no accident. It
      takes more than a server that dies does, which fails all `window` rollouts in it, twice.
    - The budget is spent. Attempts that a dying server took along cost nothing of it: which rollout ended the
      server is found out, so that one poisoned row stops nobody else's.
    """

    def __init__(
        self, window: int, budget: int, down: Callable[[], ProviderDownError | None] = lambda: None
    ) -> None:
        self._most_in_a_row = LEAST_IN_A_ROW + 2 * window
        self._budget = budget
        self._down = down
        self._in_a_row = 0
        self._spent = 0
        self.verdict = ""

    def heard(self, rollout: Rollout, *, server_died: bool) -> None:
        """One more attempt has ended."""
        if self.verdict:
            return
        if rollout.status not in RETRIED:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        self._spent += not server_died
        self.verdict = self._judged(rollout)

    def _judged(self, rollout: Rollout) -> str:
        if (down := self._down()) is not None:
            return str(down)
        if self._in_a_row >= self._most_in_a_row:
            many = f"{self._in_a_row} rollouts in a row"
        elif self._spent > self._budget:
            many = f"more than eval.failure_budget = {self._budget} rollouts"
        else:
            return ""
        return (
            f"{many} failed, and not by their own fault. The last one, of row {rollout.row_index}: "
            f"{rollout.status.value}: {rollout.reason}"
        )
