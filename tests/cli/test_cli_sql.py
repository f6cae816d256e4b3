"""`osmosis sql`: every reading, no writing, no waiting."""

import json

import pytest

from osmosis_ai.store.base import StepRecord

REWARDS = {0: [1.0], 1: [0.0], 2: [None]}


@pytest.fixture
def stored(bench):
    metrics = {"reward_mean": 0.5, "loss": 0.1, "seconds": {"step": 2.0}}
    bench.store("a", REWARDS, steps=[StepRecord("a", 1, 1, "", metrics)])
    return bench


def test_the_answer_is_a_table(stored):
    done = stored.run("sql", "SELECT row, status, reward, turns, tokens, answer FROM rollouts ORDER BY row")
    assert done.out.splitlines() == [
        "row  status        reward  turns  tokens  answer",
        "---  ------------  ------  -----  ------  ----------",
        "  0  graded             1      2       4  row 0 by a",
        "  1  graded             0      2       4  row 1 by a",
        "  2  grader_error              2       4  row 2 by a",
    ]


def test_the_answer_is_json_lines_or_csv_when_asked_for(stored):
    statement = "SELECT row, reward, reason FROM rollouts ORDER BY row DESC"
    first = json.loads(stored.run("sql", statement, "--json").out.splitlines()[0])
    assert first["values"] == {"row": 2, "reward": None, "reason": "Exact.grade raised ValueError: boom"}
    assert stored.run("sql", statement, "--csv", "--limit", "1").out.splitlines() == [
        "row,reward,reason",
        "2,,Exact.grade raised ValueError: boom",
    ]


def test_a_row_s_rollouts_are_its_members_and_tries_of_one_its_attempts(bench):
    bench.store("a", {0: [1.0, 0.5]})
    said = bench.run("sql", "SELECT member, attempt, reward FROM rollouts ORDER BY member", "--csv")
    assert said.out.splitlines() == ["member,attempt,reward", "0,0,1.0", "1,0,0.5"]
    assert bench.run("sql", "SELECT member FROM samples WHERE reward = 0.5", "--csv").out == "member\n1\n"


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("SELECT count(*) AS n FROM samples WHERE reward = 1", {"n": 1}),
        (
            "SELECT answer, tool_calls ->> '$[0].function.name' AS tool FROM turns WHERE ordinal = 0 LIMIT 1",
            {"answer": "", "tool": "add"},
        ),
        (
            "SELECT step, reward, loss, seconds FROM steps",
            {"step": 1, "reward": 0.5, "loss": 0.1, "seconds": 2.0},
        ),
        ("SELECT json ->> '$.role' AS role FROM turn_message WHERE ordinal = 1 LIMIT 1", {"role": "system"}),
        (
            "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT sum(i) AS s FROM n",
            {"s": 45},
        ),
        ("SELECT hex(completion_ids) AS h FROM turn LIMIT 1;", {"h": "0700000008000000"}),
        ("SELECT completion_ids FROM turn LIMIT 1", {"completion_ids": "0700000008000000"}),
        ("SELECT name FROM pragma_table_info('step') LIMIT 1", {"name": "run_id"}),
    ],
)
def test_views_tables_and_json_can_be_read(stored, statement, answer):
    done = stored.run("sql", statement, "--json")
    assert done.err == ""
    assert json.loads(done.out) == {"event": "row", "schema_version": 1, "values": answer}


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM run",
        "UPDATE sample SET reward = 1",
        "DROP TABLE run",
        "CREATE TABLE x (y)",
        "CREATE TEMP TABLE x AS SELECT 1",
        "ATTACH 'other.db' AS other",
        "PRAGMA query_only = 0",
        "PRAGMA journal_mode = delete",
        "VACUUM INTO 'copy.db'",
        "BEGIN IMMEDIATE",
        "SELECT load_extension('x')",
        "WITH x AS (SELECT 1) INSERT INTO run SELECT * FROM run",
    ],
)
def test_nothing_but_reading_is_allowed(stored, statement):
    done = stored.run("sql", statement)
    assert (done.code, done.out) == (2, "")
    assert "only reading is allowed here" in done.err
    assert sorted(path.name for path in stored.root.iterdir()) == [".osmosis", "rows.jsonl"]
    assert stored.run("sql", "SELECT count(*) AS n FROM sample WHERE reward = 1", "--csv").out == "n\n1\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SELEC 1"], 'near "SELEC": syntax error. Views: rollouts, samples, turns, steps'),
        (["SELECT x FROM rollouts"], "no such column: x"),
        (["SELECT 1; SELECT 2"], "one statement at a time; after the first there is: 'SELECT 2'"),
        (["SELECT 1 AS a, 2 AS a", "--json"], "--json needs a name for each column; twice: a. Use AS."),
        (["SELECT 1", "--json", "--csv"], "choose one"),
        (["SELECT 1", "--workspace", "nowhere"], "there is no database"),
    ],
)
def test_a_mistake_is_one_message(stored, arguments, message):
    done = stored.run("sql", *arguments)
    assert (done.code, message in done.err) == (2, True), done.err


def test_a_query_without_an_end_is_stopped(stored):
    endless = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    done = stored.run("sql", endless, "--seconds", "0.2")
    assert (done.code, "the query took longer than 0.2 s" in done.err) == (2, True)


def test_long_tables_are_cut_and_it_is_said(stored):
    numbers = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200) SELECT i FROM n"
    done = stored.run("sql", numbers)
    assert (len(done.out.splitlines()), done.err) == (
        102,
        "the first 100 rows; more with --limit N, all with --csv or --json\n",
    )
    assert len(stored.run("sql", numbers, "--csv").out.splitlines()) == 201


def test_a_models_answer_stays_in_its_cell(bench):
    bench.store("a", {0: [1.0]}, answer="\x1b[2Jtwo\nlines " + "long " * 30)
    done = bench.run("sql", "SELECT answer FROM rollouts")
    assert done.out.splitlines()[2].startswith("\\x1b[2Jtwo\\nlines long")
    assert done.out.splitlines()[2].endswith("…")
    assert len(done.out.splitlines()) == 3


def test_an_empty_answer_has_its_columns(stored):
    assert stored.run("sql", "SELECT row FROM rollouts WHERE row = 99").out == "row\n---\n"
