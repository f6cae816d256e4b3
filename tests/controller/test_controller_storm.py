"""When a run stops early: by how many failures, of which kind, and what they say."""

from __future__ import annotations

from osmosis_ai.controller.storm import Storm
from osmosis_ai.errors import ProviderDownError
from osmosis_ai.types import Rollout, Status


def ended(status: Status, reason: str = "refused") -> Rollout:
    return Rollout("r.r7.m0.a0", "r", row_index=7, group_id="r7", member=0, status=status, reason=reason)


def heard(storm: Storm, status: Status, times: int, *, server_died: bool = False) -> str:
    for _ in range(times):
        storm.heard(ended(status), server_died=server_died)
    return storm.verdict


def test_so_many_failures_in_a_row_stop_a_run_and_any_result_between_them_does_not():
    storm = Storm(window=4, budget=1000)
    assert heard(storm, Status.INFRASTRUCTURE, 27) == ""
    assert heard(storm, Status.WORKFLOW_ERROR, 1) == ""  # a result: the machinery works
    assert heard(storm, Status.PROVIDER_ERROR, 27) == ""
    assert heard(storm, Status.INFRASTRUCTURE, 1) == (
        "28 rollouts in a row failed, and not by their own fault. "
        "The last one, of row 7: infrastructure: refused"
    )


def test_a_server_that_dies_twice_under_all_its_rollouts_stops_nobody():
    storm = Storm(window=64, budget=100)
    assert heard(storm, Status.INFRASTRUCTURE, 128, server_died=True) == ""
    heard(storm, Status.WORKFLOW_ERROR, 1)  # found out
    assert heard(storm, Status.INFRASTRUCTURE, 128, server_died=True) == ""


def test_failures_between_results_spend_the_budget():
    storm = Storm(window=4, budget=3)
    for _ in range(3):
        heard(storm, Status.PROVIDER_ERROR, 1)
        assert heard(storm, Status.GRADED, 9) == ""
    assert heard(storm, Status.PROVIDER_ERROR, 1).startswith(
        "more than eval.failure_budget = 3 rollouts failed, and not by their own fault. The last one, of row"
    )


def test_an_endpoint_that_is_down_stops_a_run_with_the_next_failure_and_keeps_the_first_verdict():
    down: list[ProviderDownError] = []
    storm = Storm(window=4, budget=100, down=lambda: down[-1] if down else None)
    assert heard(storm, Status.PROVIDER_ERROR, 2) == ""
    down.append(ProviderDownError("http://model/v1 is down: 5 tries in a row failed"))
    assert heard(storm, Status.GRADED, 1) == ""
    assert heard(storm, Status.PROVIDER_ERROR, 1) == "http://model/v1 is down: 5 tries in a row failed"
    down.append(ProviderDownError("still"))
    assert heard(storm, Status.PROVIDER_ERROR, 1) == "http://model/v1 is down: 5 tries in a row failed"
