"""`osmosis runs export` and `import`: there and back without a bit of difference, and as others write it."""

import json
import sys

import pytest

from osmosis_ai.store.base import StepRecord

REWARDS = {0: [1.0, 0.0], 1: [0.1, None]}


@pytest.fixture
def stored(bench):
    metrics = {"loss": 1 / 3, "trained_tokens_per_second": 1.0, "seconds": {"step": 0.1}, "none": None}
    steps = [StepRecord("a", 1, 1, "checkpoints/1", metrics, 12.5)]
    bench.store(
        "a", REWARDS, steps=steps, answer="row {row} “ü” \ud83d \x00 by {run}", identity={"model": "m"}
    )
    return bench


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_comes_back_exactly_as_it_was(stored):
    done = stored.run("runs", "export", "a", "-o", "a.jsonl")
    assert done.out == "a.jsonl: run a, 4 rollouts\n"
    done = stored.run("runs", "import", "a.jsonl", "--workspace", "other")
    assert done.out == "run a: 4 rollouts imported\n"
    stored.run("runs", "export", "a", "-o", "b.jsonl", "--workspace", "other")
    assert (stored.root / "a.jsonl").read_bytes() == (stored.root / "b.jsonl").read_bytes()
    assert len(lines(stored.root / "a.jsonl")) == 1 + 1 + 4 + 1
    turn = lines(stored.root / "b.jsonl")[2]["rollout"]["turns"][1]
    assert (turn["prompt_ids"], turn["logprobs"], turn["parent"]) == ([1, 2, 3, 7, 8, 4], [-0.5, -0.25], 0)
    assert turn["response"]["content"] == "row 0 “ü” \ud83d \x00 by a"
    shown = [stored.run("runs", "show", "a", "--json", *at).out for at in ([], ["--workspace", "other"])]
    assert shown[0] == shown[1]


def test_a_run_that_the_workspace_has_is_refused_and_stays_as_it_is(stored):
    stored.run("runs", "export", "a", "-o", "a.jsonl")
    before = stored.run("runs", "show", "a", "--json").out
    done = stored.run("runs", "import", "a.jsonl")
    assert (done.code, "this workspace has a run of that name" in done.err) == (2, True)
    assert stored.run("runs", "show", "a", "--json").out == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda all: all[:-1], "is not whole: it has 4 rollouts and 1 steps, its last line says None"),
        (lambda all: [*all[:3], *all[4:]], "is not whole: it has 3 rollouts"),
        (lambda all: [*all[:3], all[2], *all[3:]], "rollout 'a.r0.m0.a0' is in it twice"),
        (lambda all: [all[0], all[1][:30], *all[2:]], "a.jsonl:2: not JSON"),
        (lambda all: ['{"user_prompt": "hi"}'], "is not a run of ours"),
        (lambda all: [all[0].replace('"version":1', '"version":2'), *all[1:]], "has version 2 of the format"),
        (lambda all: [all[0], '{"what": 1}', *all[1:]], "a.jsonl:2: expected a step, a rollout or the end"),
        (lambda all: [*all[:2], all[2].replace('"reason"', '"raisin"'), *all[3:]], "not a Rollout"),
        (
            lambda all: [*all[:2], all[2].replace('"graded"', '"great"'), *all[3:]],
            "'great' is not a valid Status",
        ),
        (lambda all: [all[0].replace('"run_id":"a"', '"run_id":"z"'), *all[1:]], "is of run 'a'"),
    ],
)
def test_a_file_that_does_not_hold_is_refused_and_nothing_is_stored(stored, damage, message):
    path = stored.root / "a.jsonl"
    stored.run("runs", "export", "a", "-o", "a.jsonl")
    path.write_text("\n".join(damage(path.read_text().splitlines())))
    done = stored.run("runs", "import", "a.jsonl", "--workspace", "other")
    assert done.code == 2
    assert message in done.err
    assert stored.run("runs", "list", "--workspace", "other").out == ""


def test_an_unknown_run_leaves_no_file_and_a_file_that_is_there(stored):
    (stored.root / "keep.jsonl").write_text("mine")
    assert "there is no run 'b'. Known: a." in stored.run("runs", "export", "b", "-o", "keep.jsonl").err
    assert (stored.root / "keep.jsonl").read_text() == "mine"
    assert "cannot be written" in stored.run("runs", "export", "a", "-o", "no/folder.jsonl").err
    assert sorted(path.name for path in stored.root.iterdir()) == [".osmosis", "keep.jsonl", "rows.jsonl"]


def test_atif_has_a_trajectory_per_rollout_with_calls_results_and_tokens(stored):
    done = stored.run("runs", "export", "a", "--format", "atif", "-o", "a.atif")
    assert done.out == "a.atif: run a, 4 trajectories\n"
    first = lines(stored.root / "a.atif")[2]
    assert (first["schema_version"], first["session_id"]) == ("ATIF-v1.7", "a.r1.m0.a0")
    assert first["agent"]["name"] == "osmosis-rollout-sdk"
    assert [(step["step_id"], step["source"]) for step in first["steps"]] == [
        (1, "system"),
        (2, "user"),
        (3, "agent"),
        (4, "agent"),
    ]
    assert first["steps"][2]["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 1}}
    ]
    assert first["steps"][2]["observation"] == {"results": [{"source_call_id": "c1", "content": "2"}]}
    assert first["steps"][3]["metrics"] == {
        "prompt_tokens": 6,
        "completion_tokens": 2,
        "prompt_token_ids": [1, 2, 3, 7, 8, 4],
        "completion_token_ids": [7, 8],
        "logprobs": [-0.5, -0.25],
        "extra": {"finish_reason": "stop", "latency_ms": 12.5, "policy_version": 0},
    }
    assert first["final_metrics"] == {
        "total_prompt_tokens": 9,
        "total_completion_tokens": 4,
        "total_steps": 4,
    }
    ours = first["extra"]["osmosis"]
    assert (ours["label"], ours["reward"], ours["request_metadata"]) == ("2", 0.1, {"kind": "odd"})


def test_without_the_dataset_an_export_has_no_labels_and_says_so(stored):
    stored.dataset.unlink()
    done = stored.run("runs", "export", "a", "--format", "atif", "-o", "a.atif")
    assert done.err.startswith("note: without labels and metadata. run 'a': its dataset")
    assert lines(stored.root / "a.atif")[0]["extra"]["osmosis"]["label"] is None


def test_parquet_without_pyarrow_says_what_to_install(stored, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = stored.run("runs", "export", "a", "--format", "parquet", "-o", "a.parquet")
    assert (done.code, done.err) == (2, "error: --format parquet needs pyarrow: pip install pyarrow\n")
    assert not (stored.root / "a.parquet").exists()


def test_parquet_has_a_line_per_sample(stored):
    parquet = pytest.importorskip("pyarrow.parquet")
    stored.run("runs", "export", "a", "--format", "parquet", "-o", "a.parquet")
    table = parquet.read_table(stored.root / "a.parquet").to_pylist()
    assert [(line["row"], line["member"], line["reward"], line["label"]) for line in table] == [
        (0, 0, 1.0, "0"),
        (0, 1, 0.0, "0"),
        (1, 0, 0.1, "2"),
        (1, 1, None, "2"),
    ]
    assert json.loads(table[0]["messages"])[1] == {"role": "user", "content": "0 + 0?"}
