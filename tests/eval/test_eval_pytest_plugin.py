"""`assert_eval`: an eval is a test, and its failure says what to look at."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from adder import CONFIG

from osmosis_ai.pytest_plugin import assert_eval

pytest_plugins = ["pytester"]
AGENT = Path(__file__).with_name("adder.py")


def write(folder: Path, *prompts: str) -> Path:
    rows = [{"user_prompt": p, "ground_truth": str(2 * int(p)) if p.isdigit() else "-"} for p in prompts]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "adder.toml").write_text(CONFIG.format(agent=AGENT))
    return folder / "adder.toml"


def test_it_returns_the_report_when_the_result_is_good_enough(tmp_path):
    report = assert_eval(write(tmp_path, "2", "3"), min_mean=0.5, min_pass=0.5, workspace=tmp_path / "ws")
    assert (report.rows, report.graded, report.mean.mean) == (2, 2, 0.5)


def test_its_failure_names_the_mean_the_worst_rows_and_the_run(tmp_path):
    with pytest.raises(AssertionError) as failed:
        assert_eval(write(tmp_path, "2", "3"), min_mean=0.9, min_pass=0.9, workspace=tmp_path / "ws")
    assert str(failed.value).splitlines() == [
        f"{tmp_path / 'adder.toml'}: mean reward 0.500 [0.013, 0.987] is below 0.9; "
        "pass@1 0.500 [0.013, 0.987] is below 0.9",
        "  row 1: reward 0: '7'",
        "  row 0: reward 1: '4'",
        f"osmosis runs show adder --workspace {tmp_path / 'ws'}",
    ]


def test_a_rollout_that_failed_fails_the_test_unless_it_is_allowed(tmp_path):
    config = write(tmp_path, "2", "none")
    with pytest.raises(
        AssertionError, match=r"1 rollouts failed, 0 allowed \(first grader_error: row 1: Exact.grade raised"
    ):
        assert_eval(config, min_mean=0.5, workspace=tmp_path / "ws")
    assert assert_eval(config, min_mean=1.0, max_failed=1, workspace=tmp_path / "ws").graded == 1


def test_a_budget_of_the_config_stops_it_and_fails_the_test(tmp_path):
    config = write(tmp_path, *["2"] * 6)
    settings = {"budget.run_tokens": 1, "rollout.max_concurrent": 1}
    with pytest.raises(AssertionError, match=r"stopped early: budget.run_tokens = 1 is used up \("):
        assert_eval(config, settings=settings, workspace=tmp_path / "ws")


async def test_it_may_be_called_where_a_loop_runs_and_keys_may_be_set(tmp_path):
    config = write(tmp_path, "2", "3")
    report = assert_eval(config, min_mean=1.0, settings={"dataset.limit": 1}, workspace=tmp_path / "ws")
    assert report.rows == 1


def test_the_fixture_runs_the_eval_of_a_file_below_the_root(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # ours by name, whether installed or not
    (pytester.path / "configs").mkdir()
    write(pytester.path / "configs", "2", "3")
    pytester.makepyfile(
        """
        def test_good(assert_eval):
            assert assert_eval("configs/adder.toml", min_mean=0.5).graded == 2

        def test_bad(assert_eval):
            assert_eval("configs/adder.toml", min_mean=0.9)
        """
    )
    result = pytester.runpytest_subprocess("-p", "osmosis_ai.pytest_plugin")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*configs/adder.toml: mean reward 0.500 * is below 0.9*", "*row 1: reward 0: '7'*"]
    )
    assert "in _run" not in result.stdout.str()


def test_the_plugin_costs_other_projects_nothing():
    code = (
        "import sys, osmosis_ai.pytest_plugin; print([m for m in sys.modules if m.startswith('osmosis_ai.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['osmosis_ai.pytest_plugin']\n"
