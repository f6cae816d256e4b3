"""`--rows`, `--limit` and `--sample` of `osmosis eval run`."""

import json
import os
import subprocess
import sys


def rows_of(folder, *options):
    """The rows whose results are reported, by the real command."""
    done = subprocess.run(
        [sys.executable, "-m", "osmosis_ai", "eval", "run", "eval.toml", "--json", "--set",
         "eval.attempts=1", *options],
        cwd=folder, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(event["row"] for event in events if event["event"] == "rollout")


def test_an_eval_takes_the_rows_it_is_asked_for_and_goes_on_with_others(tmp_path):
    subprocess.run([sys.executable, "-m", "osmosis_ai", "init", "hello"], cwd=tmp_path, check=True)
    folder = tmp_path / "hello"
    assert rows_of(folder, "--rows", "1,3-4") == [1, 3, 4]
    assert rows_of(folder, "--limit", "3") == [0, 2], "row 1 has its result"
    assert len(rows_of(folder, "--sample", "2", "--seed", "5", "--fresh")) == 2
