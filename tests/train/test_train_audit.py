"""The audit sees what it must see, and only tokens of the version that is asked for."""

import math

import pytest
from train_nouns import rollout, turn

from osmosis_ai.errors import AuditError
from osmosis_ai.train.audit import GATES, MEAN_GATES, Audit, audit, check, mean_gate
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
    check(audit(one_row(), [[0.0, 0.0, -0.5, -2.0]], version=3), gate=2e-6, mean_gate=1e-6, version=3)
    with pytest.raises(AuditError, match=r"version 3: .* differ by 0\.2 .*were not updated"):
        check(audit(one_row(), [[0.0, 0.0, -0.5, -2.2]], version=3), gate=2e-6, mean_gate=1e-6, version=3)
    with pytest.raises(AuditError, match="nan"):
        check(audit(one_row(), [[0.0, 0.0, -0.5, math.nan]], version=3), gate=1, mean_gate=1, version=3)


def test_a_small_difference_of_all_tokens_stops_the_run_where_a_large_one_of_a_few_does_not():
    """In bfloat16 single tokens differ by 0.1; a mean of 0.03 over many is no rounding."""
    gates = {"gate": 0.25, "mean_gate": 0.02, "version": 3}
    check(Audit(tokens=32, max_difference=0.2, mean_difference=0.02, k3=0.0), **gates)
    with pytest.raises(
        AuditError, match=r"differ by 0\.18 .*mean 0\.03 over 32 .*allows 0\.25 \(mean 0\.02\)"
    ):
        check(Audit(tokens=32, max_difference=0.18, mean_difference=0.03, k3=0.0), **gates)
    check(Audit(tokens=31, max_difference=0.18, mean_difference=0.03, k3=0.0), **gates)
    with pytest.raises(AuditError, match="nan"):
        check(Audit(tokens=32, max_difference=0.1, mean_difference=math.nan, k3=0.0), **gates)


def test_the_gate_on_the_mean_moves_with_the_one_that_is_set():
    assert mean_gate("bfloat16", 0.25) == 0.02
    assert mean_gate("bfloat16", 0.5) == 0.04
    assert GATES.keys() == MEAN_GATES.keys()
