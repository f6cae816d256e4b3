"""The audit sees what it must see, and only tokens of the version that is asked for."""

import math

import pytest
from train_nouns import rollout, turn

from osmosis_ai.errors import AuditError
from osmosis_ai.train.audit import audit, check
from osmosis_ai.train.samples import training_samples


def one_row():
    return training_samples(rollout(1.0, turns=[turn(0, [1, 2], [5, 20])]), {"main": 1.0})


def test_differences_and_k3_by_hand():
    result = audit(one_row(), [[0.0, 0.0, -0.5, -2.2]], version=3)
    assert (result.tokens, result.max_difference) == (2, pytest.approx(0.2))
    assert result.mean_difference == pytest.approx(0.1)
    assert result.k3 == pytest.approx((math.exp(-0.2) - 1 + 0.2) / 2)


def test_tokens_of_another_version_are_not_compared():
    assert audit(one_row(), [[0.0, 0.0, -9.0, -9.0]], version=4).tokens == 0


def test_the_gate_explains_itself_and_not_a_number_never_passes():
    check(audit(one_row(), [[0.0, 0.0, -0.5, -2.0]], version=3), gate=2e-6, version=3)
    with pytest.raises(
        AuditError, match=r"version 3: .* differ by 0\.2 .*were not updated"
    ):
        check(audit(one_row(), [[0.0, 0.0, -0.5, -2.2]], version=3), gate=2e-6, version=3)
    with pytest.raises(AuditError, match="nan"):
        check(audit(one_row(), [[0.0, 0.0, -0.5, math.nan]], version=3), gate=2e-6, version=3)
