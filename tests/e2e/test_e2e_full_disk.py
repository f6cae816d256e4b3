"""A disk that takes no more: one message, a run that is stored as failed, and the same command goes on."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from e2e_bench import SFT, Bench

BIG = SFT.replace('name = "sft"', 'name = "big"').replace('path = "start"', 'path = "large"')
FEW = BIG.replace("steps = 90", "steps = 2").replace("checkpoint_every = 30", "checkpoint_every = 1")
WEIGHTS_MIB = 6  # of the policy of this test; its optimizer's state takes four times as much


def train(bench: Bench, largest_file_mib: int) -> subprocess.CompletedProcess[str]:
    """Train in a process that may not write a file above the limit: what a full disk does to a write."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_mib << 20, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "osmosis_ai", "train", "run", "big.toml", "--json"]
    return subprocess.run(
        [*command, "--workspace", str(bench.workspace)],
        cwd=bench.folder, capture_output=True, text=True, timeout=120, preexec_fn=limit,
    )  # fmt: skip


@pytest.mark.parametrize(
    "largest_file_mib",
    [pytest.param(5, id="weights", marks=pytest.mark.slow), pytest.param(12, id="optimizer")],
)
def test_a_checkpoint_that_does_not_fit_fails_the_run_with_a_way_out_and_the_same_command_goes_on(
    bench: Bench, largest_file_mib: int
):
    bench.here("policy", "new", "large", "--from-run", "record", "--hidden-size", "256", "--layers", "2")
    assert WEIGHTS_MIB <= (bench.folder / "large" / "model.safetensors").stat().st_size >> 20 < 12
    bench.write("big.toml", FEW)
    failed = train(bench, largest_file_mib)
    checkpoints = bench.workspace / "runs" / "big" / "checkpoints"
    assert failed.returncode == 4, failed.stderr
    assert "Traceback" not in failed.stderr
    assert f"error: {checkpoints / 'step-000001'} cannot be written: " in failed.stderr
    assert "Free space or memory, then the same command goes on." in failed.stderr
    assert list(checkpoints.iterdir()) == []

    listed = {line["run"]["run_id"]: line["run"] for line in bench.lines("runs", "list")}
    assert listed["big"]["state"] == "failed"
    assert "step-000001 cannot be written" in listed["big"]["error"]

    *steps, _ = bench.lines("train", "run", "big.toml")
    assert [step.get("step") for step in steps] == [1, 2]
