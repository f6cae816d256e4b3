"""`osmosis eval compare`, on stored runs."""

import json

import pytest

FIRST = {0: [0.0], 1: [1.0], 2: [0.0], 3: [0.0]}
SECOND = {0: [1.0], 1: [0.0], 2: [1.0], 3: [0.0]}


def test_two_runs_are_compared_row_by_row(bench):
    bench.store("a", FIRST)
    bench.store("b", SECOND, identity={"model": "m2"})
    done = bench.run("eval", "compare", "a", "b")
    assert done.code == 0
    assert done.out.splitlines() == [
        "a           mean reward 0.250",
        "b           mean reward 0.500",
        "difference  +0.250 [-0.500, +1.000] over 4 rows (95% interval, bootstrap): no clear difference",
        "  2 rows better, 1 worse",
        "  solved by both 0, only by a 1, only by b 2, by neither 1; McNemar (exact) p = 1",
        "  model: None -> m2",
        "flips: 1 rows lost, 2 won",
        "  row 1: 1 -> 0",
        "    a: row 1 by a",
        "    b: row 1 by b",
        "  row 0: 0 -> 1",
        "    a: row 0 by a",
        "    b: row 0 by b",
        "  row 2: 0 -> 1",
        "    a: row 2 by a",
        "    b: row 2 by b",
    ]


def test_it_splits_by_a_column_of_the_datasets_metadata(bench):
    bench.store("a", FIRST)
    bench.store("b", SECOND)
    done = bench.run("eval", "compare", "a", "b", "--by", "kind", "--json")
    parts = json.loads(done.out)["by"]
    assert [(part["value"], part["rows"], part["difference"]["estimate"]["mean"]) for part in parts] == [
        ("even", 2, 1.0),
        ("odd", 2, -0.5),
    ]


def test_a_dataset_that_has_changed_gives_no_columns(bench):
    bench.store("a", FIRST)
    bench.store("b", SECOND)
    with bench.dataset.open("a") as file:
        file.write('\n{"user_prompt": "new"}')
    done = bench.run("eval", "compare", "a", "b", "--by", "kind")
    assert done.code == 2
    assert "is not the dataset that it was made with" in done.err
    assert "Name the right file with --dataset." in done.err


def test_a_dataset_that_was_moved_is_named(bench):
    bench.store("a", FIRST)
    bench.store("b", SECOND)
    bench.dataset.rename(bench.root / "moved.jsonl")
    assert "Name the file with --dataset." in bench.run("eval", "compare", "a", "b", "--by", "kind").err
    done = bench.run("eval", "compare", "a", "b", "--by", "kind", "--dataset", "moved.jsonl")
    assert (done.code, "  even      2 rows" in done.out) == (0, True)
    done = bench.run("eval", "compare", "a", "b", "--by", "kin", "--dataset", "moved.jsonl")
    assert "--by kin: no row has a metadata column of that name. Known: kind." in done.err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"identity": {"dataset": "beef"}}, "the dataset differs: "),
        ({"identity": {"eval.attempts": 4}}, "the attempts per row differ: 1 and 4"),
        ({"identity": {"entrypoint": "new"}}, "entrypoint was c0de, is new"),
        ({"identity": {"grader": "x.py:Other"}}, "grader was None, is x.py:Other"),
        ({"kind": "train"}, "'b' is a run of kind 'train'; only evals are compared"),
    ],
)
def test_what_is_not_comparable_is_refused_with_the_reason(bench, changes, reason):
    bench.store("a", FIRST)
    bench.store("b", SECOND, **changes)
    done = bench.run("eval", "compare", "a", "b")
    assert (done.code, done.out) == (2, "")
    assert reason in done.err


def test_every_reason_is_given_at_once(bench):
    bench.store("a", FIRST)
    bench.store("b", {0: [1.0]}, state="interrupted", identity={"entrypoint": "new"})
    done = bench.run("eval", "compare", "a", "b")
    assert "other rows: 'b' (it is interrupted) lacks 3 rows of the other: 1, 2, 3" in done.err
    assert "entrypoint was c0de, is new. Compare anyway with --allow-code-change." in done.err


def test_other_code_is_compared_when_asked_for_and_still_named(bench):
    bench.store("a", FIRST)
    bench.store("b", SECOND, identity={"entrypoint": "new"})
    done = bench.run("eval", "compare", "a", "b", "--allow-code-change")
    assert (done.code, "  entrypoint: c0de -> new" in done.out) == (0, True)


def test_a_run_is_not_compared_with_itself_and_an_unknown_one_is_named(bench):
    bench.store("a", FIRST)
    assert "they are one and the same run" in bench.run("eval", "compare", "a", "a").err
    assert "there is no run 'b'. Known: a." in bench.run("eval", "compare", "a", "b").err


def test_a_regression_ends_with_exit_code_3_and_a_drop_within_chance_does_not(bench):
    bench.store("perfect", {row: [1.0] for row in range(6)})
    bench.store("worse", {row: [0.0] for row in range(6)})
    bench.store("one-lost", {row: [float(row != 1)] for row in range(6)})
    done = bench.run("eval", "compare", "perfect", "worse", "--fail-on-regression")
    assert (done.code, done.err) == (3, "regression: the difference is -1.000 [-1.000, -0.081]\n")
    assert bench.run("eval", "compare", "perfect", "one-lost", "--fail-on-regression").code == 0
    assert bench.run("eval", "compare", "worse", "perfect", "--fail-on-regression").code == 0


def test_failed_rollouts_are_named_and_count_as_nothing(bench):
    bench.store("a", FIRST)
    bench.store("b", {**SECOND, 3: [None]})
    done = bench.run("eval", "compare", "a", "b", "--json")
    comparison = json.loads(done.out)
    assert comparison["notes"] == ["b: 1 of 4 rollouts failed and have no reward"]
    assert comparison["difference"]["num_unpaired"] == 1
    assert comparison["difference"]["estimate"]["num_rows"] == 3


def test_a_models_answer_does_not_control_the_terminal(bench):
    bench.store("a", FIRST, answer="\x1b[2Jgone")
    bench.store("b", SECOND)
    done = bench.run("eval", "compare", "a", "b")
    assert "\\x1b[2Jgone" in done.out
    assert "\x1b" not in done.out
