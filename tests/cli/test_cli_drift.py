"""`osmosis drift`: why conversations broke, in words and in JSON."""

import json
from dataclasses import replace

import pytest
import stored_workspace


@pytest.fixture
def clock(bench, monkeypatch):
    """A run of an agent whose system message has the time in it."""

    def turn(rollout_id, ordinal, messages, response):
        made = made_by(rollout_id, ordinal, messages, response)
        if ordinal == 0:
            return made
        later = [{"role": "system", "content": "Add. It is 10:04."}, *messages[1:]]
        return replace(made, messages=later, parent=None, branch_reason="edited_history")

    made_by = stored_workspace._turn
    monkeypatch.setattr(stored_workspace, "_turn", turn)
    bench.store("clock", {0: [1.0], 1: [0.0]})
    return bench


def test_a_run_that_only_grew_has_no_break_and_names_what_no_step_can_train(bench):
    bench.store("a", {0: [1.0], 1: [None]})
    assert bench.run("drift", "a").out.splitlines() == [
        "run a: 2 rollouts, 2 conversations, 4 calls",
        "  2 of 2 conversations are one training sample",
        "  0 calls began a branch; 0 of 8 sampled tokens were read again as text",
        "sampled tokens that no step can train: 4 grader_error (docs/metrics.md)",
    ]


def test_breaks_come_by_cause_with_the_first_place_and_an_advice(clock):
    assert clock.run("drift", "clock").out.splitlines() == [
        "run clock: 2 rollouts, 2 conversations, 4 calls",
        "  0 of 2 conversations are one training sample",
        "  2 calls began a branch; 4 of 8 sampled tokens were read again as text",
        "instructions_changed: 2 calls in 2 rollouts, 12 prompt tokens computed again, 4 sampled tokens read "
        "again",
        "  first: rollout clock.r0.m0.a0, call 1, message 0 (system): 'Add.' became 'Add. It is 10:04.'",
        "  Build the system message once per rollout. What changes (time, memory, notes) belongs in a new",
        "  message at the end.",
        "sampled tokens that no step can train: none (docs/metrics.md)",
    ]
    found = json.loads(clock.run("drift", "clock", "--json").out)
    assert (found["whole"], len(found["breaks"])) == (0, 2)
    assert found["breaks"][0]["cause"] == "instructions_changed"


def test_an_unknown_run_is_refused_with_those_that_are_known(clock):
    done = clock.run("drift", "clok")
    assert (done.code, done.err) == (2, "error: there is no run 'clok'. Known: clock.\n")
