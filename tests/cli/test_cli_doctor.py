"""`osmosis doctor`: what it finds, and that each finding says how to mend it."""

import json
import socket
from pathlib import Path

import pytest

from osmosis_ai.cli import machine
from osmosis_ai.config import load_config

CONFIG = """
[rollout]
entrypoint = "agent.py"
[dataset]
path = "rows.jsonl"
[llm]
model = "m"
base_url = "http://127.0.0.1:{port}/v1"
api_key_env = "SOME_PROVIDER_KEY"
"""


@pytest.fixture
def config(tmp_path):
    def make(port: int = 1):
        (tmp_path / "eval.toml").write_text(CONFIG.format(port=port))
        return load_config(tmp_path / "eval.toml")

    return make


def test_a_machine_that_runs_these_tests_is_healthy(bench):
    done = bench.run("doctor", "--json")
    *checks, diagnosis = map(json.loads, done.out.splitlines())
    assert (done.code, diagnosis["healthy"], diagnosis["failed"]) == (0, True, 0)
    assert [check["name"] for check in checks] == [
        "python", "packages", "sqlite", "disk", "file system", "open files", "ports", "proxy", "gpu", "clock",
        "keys",
    ]  # fmt: skip
    assert all(bool(check["mend"]) == (check["state"] != "ok") for check in checks)
    assert not (bench.root / ".osmosis").exists()  # looking makes nothing


def test_a_key_that_is_not_set_and_a_server_that_is_not_there_fail_with_their_names(bench, config):
    config()
    done = bench.run("doctor", "eval.toml")
    assert done.code == 4
    assert "FAIL  keys         llm.api_key_env = 'SOME_PROVIDER_KEY' is not set\n" in done.out
    assert "to mend: export SOME_PROVIDER_KEY=...\n" in done.out
    assert "llm.base_url = 'http://127.0.0.1:1/v1': 127.0.0.1:1 cannot be reached" in done.out
    assert done.out.splitlines()[-1].startswith("2 to mend")


def test_a_key_is_looked_at_and_never_shown(config):
    assert [check.state for check in machine.keys(config(), {"SOME_PROVIDER_KEY": "secret"})] == ["ok"]
    [check] = machine.keys(config(), {"SOME_PROVIDER_KEY": "secret\n"})
    assert check.state == "warn"
    assert "secret" not in f"{check.found} {check.mend}"


def test_an_endpoint_that_listens_is_there(config):
    with socket.create_server(("127.0.0.1", 0)) as server:
        [check] = machine.endpoints(config(server.getsockname()[1]))
    assert check.state == "ok"


def test_a_config_that_does_not_hold_is_said_with_its_places_and_exit_code_2(bench):
    (bench.root / "eval.toml").write_text("[rollout]\nentrypont = 'a.py'\n")
    done = bench.run("doctor", "eval.toml")
    assert done.code == 2
    assert "FAIL  config       eval.toml:2:1: unknown key 'rollout.entrypont'. Did you mean" in done.out
    assert "FAIL  config       eval.toml:1:1: the table [dataset] is missing" in done.out
    assert "ok    python" in done.out  # the rest is looked at all the same


def test_a_port_that_is_taken_is_a_warning_with_the_way_around(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(machine, "SERVE_PORT", server.getsockname()[1])
        [check] = machine.ports()
    assert (check.state, check.mend) == (
        "warn",
        "matters to `osmosis serve` only: give it another port with --port",
    )


def test_a_proxy_that_would_be_asked_for_loopback_is_a_warning(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "internal")
    assert machine.proxy().state == "warn"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert machine.proxy().state == "ok"


def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(tmp_path):
    table = tmp_path / "mounts"
    table.write_text(
        f"disk / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\ntmp {tmp_path}/a/b tmpfs rw 0 0\n"
    )
    assert machine.mounted_as(tmp_path / "a", table) == "nfs4"
    assert machine.mounted_as(tmp_path / "a" / "b" / "c", table) == "tmpfs"
    assert machine.mounted_as(Path("/etc"), table) == "ext4"
    assert machine.mounted_as(tmp_path, tmp_path / "none") is None


def test_a_limit_on_open_files_that_is_too_low_names_the_number_that_is_needed(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    assert machine.open_files(64).state == "ok"
    check = machine.open_files(1000)
    assert (check.state, "4,256" in check.found, "ulimit -Hn 4256" in check.mend) == ("warn", True, True)


def test_a_workspace_that_cannot_be_written_or_has_no_room_fails(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    assert machine.disk(tmp_path / "file").state == "fail"
    monkeypatch.setattr(
        machine.shutil, "disk_usage", lambda path: machine.shutil._ntuple_diskusage(1, 1, 10**9)
    )
    assert machine.disk(tmp_path / "not" / "yet").state == "warn"
