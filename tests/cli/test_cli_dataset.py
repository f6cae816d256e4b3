"""`osmosis dataset`: what is in a file, and what is wrong with it."""

import json


def test_validate_says_what_is_there(bench):
    done = bench.run("dataset", "validate", "rows.jsonl")
    assert (done.code, done.out) == (
        0,
        "rows.jsonl: 4 rows, 4 with a label, 0 with a system prompt\n"
        "  metadata: kind\n"
        "  longest prompt: 6 characters, in row 0\n",
    )
    found = json.loads(bench.run("dataset", "validate", "rows.jsonl", "--json").out)
    assert {key: found[key] for key in ("event", "rows", "labels", "metadata")} == {
        "event": "dataset",
        "rows": 4,
        "labels": 4,
        "metadata": ["kind"],
    }


def test_validate_says_everything_that_is_wrong(bench):
    (bench.root / "bad.jsonl").write_text('{"user_prompt": 1}\nx\n{"user_prompt": "\\ud83d"}\n')
    done = bench.run("dataset", "validate", "bad.jsonl")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        "error: bad.jsonl:1: user_prompt must be a string, got the number 1",
        "bad.jsonl:2: not JSON: Expecting value at column 1",
        "bad.jsonl:3: user_prompt has half of a surrogate pair, \\ud83d: it is no character, so the row "
        "cannot be sent. Write both halves (\\ud83d\\ude00 is one character), or take it out",
    ]


def test_preview_shows_rows_as_the_agent_and_the_grader_get_them(bench):
    done = bench.run("dataset", "preview", "rows.jsonl", "--rows", "1,3")
    assert done.out.splitlines() == [
        "row 1",
        "         user | 1 + 1?",
        "  label: 2",
        "  kind: odd",
        "row 3",
        "         user | 3 + 3?",
        "  label: 6",
        "  kind: odd",
    ]


def test_preview_lets_no_text_control_the_terminal(bench):
    (bench.root / "a.jsonl").write_text(
        json.dumps({"user_prompt": "\x1b[2J", "label": "\x07", "x\x1b": "\x1b"})
    )
    done = bench.run("dataset", "preview", "a.jsonl")
    assert "\x1b" not in done.out
    assert "\x07" not in done.out


def test_the_seed_of_a_draw_needs_a_draw(bench):
    (bench.root / "eval.toml").write_text("")
    done = bench.run("eval", "run", "eval.toml", "--seed", "3")
    assert (done.code, done.err) == (2, "error: --seed is the seed of --sample N, which is not given\n")
