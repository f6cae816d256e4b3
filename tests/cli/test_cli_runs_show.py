"""`osmosis runs show`: the report of an eval from what is stored, and conversations in full."""

import json


def test_an_eval_is_shown_with_its_report_and_by_a_metadata_column(bench):
    bench.store("a", {0: [1.0], 1: [0.0], 2: [1.0], 3: [None]})
    done = bench.run("runs", "show", "a", "--by", "kind")
    assert done.code == 0
    assert "  mean reward  0.667 [0.094, 0.992] (95% interval, exact)" in done.out
    assert "  1 without a reward: grader_error, first row 3: Exact.grade raised ValueError: boom" in done.out
    assert "  8 turns of 0.01 s, 36 prompt and 16 completion tokens" in done.out
    by = done.out[done.out.index("by kind:") :].splitlines()
    assert by[1].startswith("  even      2 rows  1.000 [0.158, 1.000]  turns 2.0  tokens 13.0")
    assert by[2].startswith("  odd       2 rows  0.000")
    assert by[2].endswith("1 failed")
    report = json.loads(bench.run("runs", "show", "a", "--json", "--by", "kind").out.splitlines()[-1])
    assert (report["event"], report["graded"], report["by"]["odd"]["failures"]) == (
        "report",
        3,
        {"grader_error": 1},
    )


def test_the_members_of_a_row_are_told_apart(bench):
    bench.store("a", {0: [1.0, 0.0]})
    assert bench.run("runs", "show", "a").out.splitlines()[1:3] == [
        "  row 0            graded           reward 1",
        "  row 0  member 1  graded           reward 0",
    ]


def test_a_column_that_no_row_has_is_named_with_those_that_there_are(bench):
    bench.store("a", {0: [1.0]})
    done = bench.run("runs", "show", "a", "--by", "colour")
    assert (done.code, "no row has a metadata column of that name. Known: kind." in done.err) == (2, True)


def test_a_row_is_shown_with_its_tool_calls_and_the_time_of_each_answer(bench):
    bench.store("a", {3: [1.0]})
    assert bench.run("runs", "show", "a", "--row", "3").out.splitlines() == [
        "rollout a.r3.m0.a0  row 3  graded  reward 1  2 turns  4 sampled tokens  0.25 s, model calls 0.03 s",
        "  sample main  reward 1  policy version 0",
        "      metrics | exact 1",
        "       system | Add.",
        "         user | 3 + 3?",
        '    assistant | calls add({"a": 3})',
        "              |   [0.01 s, 3 + 2 tokens, tool_calls]",
        "         tool | 6",
        "    assistant | row 3 by a",
        "              |   [0.01 s, 6 + 2 tokens, stop]",
    ]
