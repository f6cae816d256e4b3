"""The audit: do sampler and trainer give the same probability to the same token under the same weights?

Agreement is what makes "on-policy" true. A stale cache, a wrong template or a half-loaded checkpoint shows
here and nowhere else. Normal in float32: a few 1e-7; a stale prefix cache was seen at 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_ai.errors import AuditError
from osmosis_ai.types import PolicyVersion, TrainingSample

# Largest difference of log-probabilities that is accepted, by the arithmetic of the engine. Seen: 0.0 in
# doubles on float32 weights, up to 1.8e-5 in float32, 0.1 in bfloat16; a stale cache 0.07 to 7.
GATES = {"float64": 2e-6, "float32": 1e-4, "bfloat16": 0.25}

# The same of their mean. The largest of many roundings in bfloat16 is as large as what a stale cache does
# after a small update; the mean is not: rounding gives 0.0002 to 0.008, a stale cache 0.03 and more (0.014
# was seen once, after an update of 3e-4). In float32 rounding gives up to 1.3e-6.
MEAN_GATES = {"float64": 1e-6, "float32": 1e-5, "bfloat16": 0.02}
MEAN_TOKENS = 32  # of fewer tokens the mean says no more than the largest


@dataclass(frozen=True, slots=True)
class Audit:
    """Differences of log-probabilities (natural log), over the tokens sampled under one version."""

    tokens: int
    max_difference: float
    mean_difference: float
    k3: float  # KL(sampler || trainer), estimator k3 of Schulman 2020: mean of (r - 1) - log r


def audit(
    rows: Sequence[TrainingSample], trainer_logprobs: Sequence[Sequence[float]], version: PolicyVersion
) -> Audit:
    """Compare the sampler's log-probabilities with the trainer's, for tokens of exactly `version`.

    One token, sampler -0.5, trainer -0.7: difference 0.2, k3 = (e^-0.2 - 1) + 0.2 = 0.0187.
    """
    differences = [
        trainer[t] - row.logprobs[t]
        for row, trainer in zip(rows, trainer_logprobs, strict=True)
        for t in range(len(row.token_ids))
        if row.loss_mask[t] and row.versions[t] == version
    ]
    if not differences:
        return Audit(0, 0.0, 0.0, 0.0)
    sizes = [abs(difference) for difference in differences]
    count = len(sizes)
    k3 = math.fsum(math.expm1(d) - d for d in differences) / count
    # max() does not see a NaN that is not first, and NaN passes every gate
    worst = math.nan if any(math.isnan(size) for size in sizes) else max(sizes)
    return Audit(count, worst, math.fsum(sizes) / count, k3)


def mean_gate(arithmetic: str, gate: float) -> float:
    """The gate on the mean that goes with `gate` on the largest: raising one raises the other.

    bfloat16, gate 0.25 (the default): 0.02; gate 0.5: 0.04.
    """
    return MEAN_GATES[arithmetic] * gate / GATES[arithmetic]


def check(result: Audit, *, gate: float, mean_gate: float, version: PolicyVersion) -> None:
    """Raise AuditError when the largest or the mean difference is above its gate, or not a number."""
    mean_holds = result.tokens < MEAN_TOKENS or result.mean_difference <= mean_gate
    if result.max_difference <= gate and mean_holds:
        return
    raise AuditError(
        f"policy version {version}: sampler and trainer differ by {result.max_difference:.3g} in the "
        f"log-probability of a token (mean {result.mean_difference:.3g} over {result.tokens} tokens); "
        f"train.audit_gate allows {gate:.3g} (mean {mean_gate:.3g}). The weights were not updated. "
        "Usual causes: a cache that survived an update, a checkpoint that was only partly loaded, a dtype "
        "below float32 (then raise train.audit_gate knowingly). See docs/troubleshooting.md#audit."
    )
