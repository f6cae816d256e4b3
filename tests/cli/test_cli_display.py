"""What is printed while a run works and after it: whole lines, no control characters, data apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from osmosis_ai.cli.display import Display, TrainProgress, first_line, step_parts, wrapped
from osmosis_ai.cli.eval import exit_code
from osmosis_ai.cli.eval_progress import EvalProgress, fitting, result_line
from osmosis_ai.cli.eval_report import by_text, report_text
from osmosis_ai.cli.transcript import message_lines, transcript
from osmosis_ai.eval.run import summarise
from osmosis_ai.eval.tally import Tally
from osmosis_ai.providers.prices import Prices
from osmosis_ai.store.base import StepRecord
from osmosis_ai.types import Rollout, Sample, Status, Turn

NASTY = "\x1b[2J\x1b[31mred\x07 [bold]loud[/bold] [/nothing]\r\x9b0m\u202eabc"
KINDS = (("multiply", 0.0), ("add", 1.0))
SHOWN = "\\x1b[2J\\x1b[31mred\\x07 [bold]loud[/bold] [/nothing]\\x0d\\x9b0m\\x202eabc"


def rollout(row: int, status: Status = Status.GRADED, reward: float = 1.0, reason: str = "") -> Rollout:
    done = Rollout(f"x.r{row}", "x", row, f"r{row}", 0, status=status, reason=reason)
    done.samples = {"main": Sample("main", reward=reward)} if status is Status.GRADED else {}
    return done


def step_record(**metrics: Any) -> StepRecord:
    count = {"rollouts": 64, "tokens": 640}
    trained = {"rollouts": 48, "tokens": 480}
    known = {
        "reward_mean": 0.640625,
        "groups_with_signal": 6,
        "groups": 8,
        "funnel": {
            "stages": {"generated": count, "trained": trained},
            "losses": {"no_signal": {"rollouts": 16}},
        },
        "sampled_tokens_per_second": 1912.3,
        "audit": {"max_difference": 4.8e-7},
        "loss": 0.1,
        "seconds": {"step": 3.42},
    }
    return StepRecord("x", 7, 7, "", {**known, **metrics}, 0.0)


def test_a_step_is_one_line_of_less_than_120_columns():
    line = "  ".join([*step_parts(step_record(), 40), "left 1:52"])
    assert line == (
        "step  7/40  reward 0.641  signal 6/8 groups  trained 48/64 (16 no_signal)  1,912 tok/s  "
        "audit 4.8e-07  3.4 s  left 1:52"
    )
    assert len(line) < 120


def test_a_step_without_signal_says_that_the_weights_did_not_change():
    parts = step_parts(step_record(loss=None, reward_mean=None), 40)
    assert parts[1] == "reward -"
    assert "no group has a signal: weights unchanged" in parts


def test_lines_are_broken_between_parts_and_never_inside_of_one():
    parts = ["step 1/4", "reward 0.500", "trained 8/8", "left 0:01"]
    assert wrapped(parts, None) == ["step 1/4  reward 0.500  trained 8/8  left 0:01"]
    assert wrapped(parts, 36) == ["step 1/4  reward 0.500  trained 8/8", "    left 0:01"]
    assert wrapped(parts, 5) == ["step 1/4", "    reward 0.500", "    trained 8/8", "    left 0:01"]


def test_a_reason_is_shown_by_its_first_line_and_not_more_than_fits():
    assert first_line("") == ""
    assert first_line("a\nb") == "a"
    assert (len(first_line("x" * 1000)), first_line("x" * 1000)[-1]) == (240, "…")


def test_piped_notes_are_plain_lines_without_control_characters(capsys: pytest.CaptureFixture[str]):
    display = Display(as_json=False)
    with display.bar("starting"):
        display.note(NASTY)
        display.out(NASTY)
        progress = EvalProgress(display, 2)
        progress.on_result(rollout(0, Status.WORKFLOW_ERROR, reason=NASTY).outcome)
    out, err = capsys.readouterr()
    assert out == SHOWN + "\n"
    assert err.splitlines() == [SHOWN, f"1/2  row 0  workflow_error  0 turns  0 tokens  0.00 s  {SHOWN}"]
    assert (out + err).replace("\n", "").isprintable()


def test_json_lines_are_ascii_and_come_alone_on_standard_output(capsys: pytest.CaptureFixture[str]):
    display = Display(as_json=True)
    display.note("for the person")
    display.out("for the person")
    display.data({"event": "said", "text": NASTY})
    out, err = capsys.readouterr()
    assert out.rstrip("\n").isascii()
    assert out.rstrip("\n").isprintable()
    assert json.loads(out) == {"event": "said", "schema_version": 1, "text": NASTY}
    assert err == "for the person\n"


def test_only_the_first_attempts_that_are_tried_again_are_shown(capsys: pytest.CaptureFixture[str]):
    progress = EvalProgress(Display(as_json=False), 9)
    for row in range(8):
        progress.on_retry(rollout(row, Status.INFRASTRUCTURE, reason="the server died\nlog"))
    assert capsys.readouterr().err.splitlines() == [
        "  row 0: infrastructure, tried again: the server died",
        "  row 1: infrastructure, tried again: the server died",
        "  row 2: infrastructure, tried again: the server died",
        "  further failures are not shown here; see `osmosis runs show`",
    ]


def test_every_result_is_a_line_when_piped_and_none_with_json(capsys: pytest.CaptureFixture[str]):
    for as_json in (False, True):
        progress = EvalProgress(Display(as_json=as_json), 5)
        for row in range(5):
            progress.on_result(rollout(row).outcome)
    assert [line.partition("  0 turns")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"{row + 1}/5  row {row}  graded  reward 1" for row in range(5)
    ]


def test_a_live_line_shows_small_costs():
    progress = EvalProgress(Display(as_json=False), 5, dollars=lambda: 0.00041)
    assert "  $0.00041  " in progress._line() + "  "


def test_a_live_line_says_the_most_important_first_and_keeps_to_its_columns():
    rate, failed = "pass 0.50 [0.10, 0.90]", ("3 workflow_timeout", "3 failed")
    parts = [("12/988",), (rate,), failed, ("$0.42",), ("1,204 tok/s",)]
    assert fitting(parts, 120) == ["12/988", rate, "3 workflow_timeout", "$0.42", "1,204 tok/s"]
    assert fitting(parts, 80) == ["12/988", rate, "3 failed", "$0.42"]
    assert fitting(parts, 10) == []


def test_the_line_of_a_result_names_the_attempt_where_there_are_several():
    done = rollout(7)
    done.member = 2
    assert result_line(done.outcome).startswith("row 7  member 2  graded  reward 1  0 turns")


def test_a_training_run_prints_a_line_per_step_and_json_instead_when_asked(
    capsys: pytest.CaptureFixture[str],
):
    for as_json in (False, True):
        progress = TrainProgress(Display(as_json=as_json), 64)
        progress.on_start(6, 7)
        progress.on_step(step_record())
    out, err = capsys.readouterr()
    assert json.loads(out)["step"] == 7
    assert err.count("step 7/7  reward 0.641") == 1
    assert err.count("going on after step 6 of 7") == 2


def test_a_transcript_shows_what_the_model_wrote_and_obeys_none_of_it():
    turn = Turn(
        *("x.r0", "main", 0, None, None, [{"role": "user", "content": "hi"}], [], {}, "stop"),
        *([], [], [], None, 1, 1, {}, "m", 0, 1.0),
    )
    call = {"function": {"name": NASTY, "arguments": NASTY}}
    turn.response.update({"role": "assistant", "content": NASTY, "tool_calls": [call]})
    turn.response["reasoning_content"] = NASTY
    done = rollout(0, reason=NASTY)
    done.turns = [turn]
    done.samples["main"].metrics[NASTY] = 0.5
    text = transcript(done)
    assert f"   thinks | {SHOWN}" in text
    assert f"assistant | {SHOWN}" in text
    assert f"calls {SHOWN}({SHOWN})" in text
    assert f"{SHOWN} 0.5" in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "7 times 8"},
        {"reasoning": "7 times 8", "reasoning_content": ""},
        {"thinking_blocks": [{"type": "thinking", "thinking": "7 times 8"}, {"type": "redacted_thinking"}]},
    ],
)
def test_reasoning_is_shown_before_the_answer_wherever_the_endpoint_puts_it(fields):
    assert message_lines({"role": "assistant", "content": "56", **fields}) == [
        "       thinks | 7 times 8",
        "    assistant | 56",
    ]


def test_each_answer_of_a_transcript_has_its_own_timing_and_an_example_in_the_prompt_has_none():
    def turn(ordinal, messages, response, milliseconds):
        parent = ordinal - 1 if ordinal else None
        return Turn(
            *("x.r0", "main", ordinal, parent, None, messages, [], response, "stop"),
            *([], [], [], None, 10, 2 + ordinal, {}, "m", 0, milliseconds),
        )

    prompt = [{"role": "assistant", "content": "an example"}, {"role": "user", "content": "2 + 2?"}]
    first, told = {"role": "assistant", "content": "4"}, {"role": "user", "content": "sure?"}
    done = rollout(0)
    done.duration_seconds = 2.0
    done.turns = [
        turn(0, prompt, first, 1250.0),
        turn(1, [*prompt, first, told], {"role": "assistant", "content": "yes"}, 500.0),
    ]
    assert transcript(done).splitlines() == [
        "rollout x.r0  row 0  graded  reward 1  2 turns  5 sampled tokens  2.00 s, model calls 1.75 s",
        "  sample main  reward 1",
        "    assistant | an example",
        "         user | 2 + 2?",
        "    assistant | 4",
        "              |   [1.25 s, 10 + 2 tokens, stop]",
        "         user | sure?",
        "    assistant | yes",
        "              |   [0.50 s, 10 + 3 tokens, stop]",
    ]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([Status.GRADED, Status.GRADED], 0),
        ([Status.GRADED, Status.WORKFLOW_ERROR], 0),
        ([Status.GRADED, Status.PROVIDER_ERROR], 5),
        ([Status.GRADED, Status.MODEL_ERROR], 0),
        ([Status.GRADED, Status.INFRASTRUCTURE, Status.GRADER_ERROR], 5),
        ([Status.WORKFLOW_ERROR, Status.NO_TURNS], 1),
        ([Status.WORKFLOW_ERROR, Status.PROVIDER_ERROR], 4),
    ],
)
def test_the_exit_code_of_an_eval_says_whose_failures_it_had(statuses: list[Status], code: int):
    report = summarise([rollout(row, status) for row, status in enumerate(statuses)], 1, 1.0)
    assert exit_code(report) == code


def test_a_report_counts_failures_and_shows_the_first_of_each_kind():
    failed = [rollout(row, Status.GRADER_ERROR, reason=f"reason {row}") for row in (3, 4)]
    lines = report_text("x", summarise([rollout(0), *failed], 1, 1.0)).splitlines()
    assert lines[0] == "run x: 1 graded rollouts of 3 rows"
    assert "  2 without a reward: grader_error, first row 3: reason 3" in lines


def test_the_report_by_a_column_has_a_line_for_each_value():
    reports = {kind: summarise([rollout(0), rollout(1, reward=reward)], 1, 1.0) for kind, reward in KINDS}
    assert by_text("kind", reports).splitlines() == [
        "by kind:",
        "  add           2 rows  1.000 [0.158, 1.000]  turns 0.0  tokens 0.0  seconds 0.0  model 0.0",
        "  multiply      2 rows  0.500 [0.013, 0.987]  turns 0.0  tokens 0.0  seconds 0.0  model 0.0",
    ]


def test_the_report_says_what_a_rollout_takes_and_what_all_of_them_cost():
    turns = [
        Turn("x.r0", "main", i, None, None, [], [], {}, "stop", [], [], [], None, 10, 2, {}, "m", 0, 500.0)
        for i in range(2)
    ]
    many = [rollout(row) for row in range(2)]
    many[0].turns, many[1].turns = turns, turns[:1]
    tally = Tally(1, 1.0, Prices(input=1e6, output=0.0))
    for done in many:
        tally.add(done.outcome)
    text = report_text("x", tally.report()).splitlines()
    assert "  3 turns of 0.50 s, 30 prompt and 6 completion tokens, $30.00" in text
    assert "  per rollout        mean   median      95%" in text
    assert "    tokens             18       18       23" in text


def test_malformed_tool_calls_are_counted_in_the_report():
    done = rollout(0)
    done.turns = [
        Turn("x.r0", "main", i, None, None, [], [], {}, "stop", [], [], [], None, 1, 2, {}, "m", i, 1.0)
        for i in range(3)
    ]
    report = summarise([done], 1, 1.0)
    assert (report.malformed_tool_calls, report.turns, report.completion_tokens) == (3, 3, 6)
    assert "  3 malformed tool calls, answered with an error result" in report_text("x", report).splitlines()


def test_a_run_in_which_no_call_was_answered_has_no_table_of_zeros():
    tally = Tally(attempts=1, pass_threshold=1.0)
    tally.add(Rollout("r", "x", 7, "r7", 0, status=Status.PROVIDER_ERROR, reason="down").outcome)
    assert report_text("x", tally.report()).splitlines() == [
        "run x: 0 graded rollouts of 1 rows",
        "  1 without a reward: provider_error, first row 7: down",
        "  0 turns, 0 prompt and 0 completion tokens",
        "look at one: osmosis runs show x --row 7",
    ]
