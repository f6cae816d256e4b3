"""Gates: what a run must hold, and the exit code when it does not. The one place of exit code 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_ai.eval.statistics import Difference, Estimate

BELOW_THRESHOLD = 3


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition and whether it held."""

    held: bool
    message: str  # one line for the person, with the numbers


def mean_at_least(mean: Estimate | None, threshold: float) -> Gate:
    """`--fail-under`: the mean reward itself is compared, not its interval; no reward at all is not enough.

    A mean of 0.9 under a threshold of 0.9 holds; the interval is there to judge how lucky that was.
    """
    if mean is None:
        return Gate(False, f"nothing was graded, so there is no mean reward to reach {threshold:g}")
    if mean.mean < threshold:
        return Gate(False, f"mean reward {mean} is below {threshold:g}")
    return Gate(True, f"mean reward {mean} reaches {threshold:g}")


def no_regression(difference: Difference) -> Gate:
    """`--fail-on-regression`: fails when the second run is worse and the interval leaves out 0.

    A drop that chance explains is no regression; one row alone has no interval, so any drop of it is one.
    """
    estimate = difference.estimate
    worse = estimate.mean < 0.0 and (difference.is_clear or estimate.low is None)
    if worse:
        return Gate(False, f"regression: the difference is {estimate}")
    return Gate(True, f"no clear regression: the difference is {estimate}")


def exit_code(gates: Sequence[Gate], otherwise: int = 0) -> int:
    """3 when a gate did not hold, unless something worse (`otherwise`) is the case already."""
    return otherwise or (0 if all(gate.held for gate in gates) else BELOW_THRESHOLD)
