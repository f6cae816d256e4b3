"""`osmosis init`: what it writes runs, in a process that can reach nothing but this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from osmosis_ai.cli.init import FILES, FRAMEWORKS, TEMPLATES, template

ROOT = Path(__file__).resolve().parents[2]
# Loaded by every Python that is started below: whoever wants to leave this machine is stopped and noted.
NO_NETWORK = """
import pathlib, sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        host = arguments[1][0] if event == "socket.connect" else arguments[0]
        if isinstance(host, bytes):
            host = host.decode()
        if host not in ("127.0.0.1", "::1", "localhost", None) and not str(host).startswith("/"):
            pathlib.Path(__file__).with_name("left").write_text(str(host))
            raise OSError(f"no network in this test: {host}")
sys.addaudithook(watch)
"""


class Shell:
    """Commands in a folder, without keys in the environment and without a network."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fence = folder, folder / "fence"
        self.fence.mkdir()
        (self.fence / "sitecustomize.py").write_text(NO_NETWORK)

    def python(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.fence), str(ROOT)])
        keep = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**keep, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )
        assert not (self.fence / "left").exists(), (self.fence / "left").read_text()
        return done

    def osmosis(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "osmosis_ai", *arguments, cwd=cwd or self.folder)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_project_evaluates_at_once_with_passes_and_failures(shell: Shell, framework: str):
    assert shell.osmosis("init", "hello", "--framework", framework).returncode == 0
    done = shell.osmosis("eval", "run", "eval.toml", "--json", cwd=shell.folder / "hello")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["run_id"], report["graded"], report["failures"]) == ("hello", 40, {})
    assert report["mean"]["mean"] == 0.675  # 27 of 40: the mistakes of the scripted model are always the same


def test_the_project_s_own_tests_pass(shell: Shell):
    shell.osmosis("init", "hello")
    plugin = ["-p", "osmosis_ai.pytest_plugin"] if not installed() else []
    done = shell.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, cwd=shell.folder / "hello")
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.name == "osmosis" for point in entry_points(group="pytest11"))


def test_the_folder_holds_the_files_that_the_command_names_and_no_others(shell: Shell):
    done = shell.osmosis("init", "deep/er/hello", "--json")
    [created] = map(json.loads, done.stdout.splitlines())
    folder = shell.folder / "deep" / "er" / "hello"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert (created["path"], sorted(created["files"])) == (str(folder), files)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("hello", ["osmosis-ai"])
    assert not any("PROJECT_NAME" in (folder / file).read_text() for file in files)


def test_an_empty_working_directory_can_be_the_project(shell: Shell):
    (shell.folder / "here").mkdir()
    done = shell.osmosis("init", ".", cwd=shell.folder / "here")
    assert (done.returncode, "cd ." in done.stdout) == (0, False)
    assert done.stdout.startswith("here: a project that runs")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("taken", "taken exists and is not empty (it has a, b, c, ...); choose another name: nothing is"),
        ("file", "no folder can be made at file: "),
        ("file/hello", "no folder can be made at file/hello: "),
        ("two words", "'two words' cannot name a project, which must be at most 96 letters, digits"),
        ("-", "'-' cannot name a project"),
        ("hello-", "'hello-' cannot name a project"),
        ("é", "'é' cannot name a project"),
        ("x" * 97, "cannot name a project"),
        ("sealed/hello", "cannot be written"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(bench, name: str, expected: str):
    (bench.root / "taken").mkdir()
    (bench.root / "sealed").mkdir(mode=0o500)
    for file in ("taken/a", "taken/b", "taken/c", "taken/d", "file"):
        (bench.root / file).write_text("mine")
    before = sorted(bench.root.rglob("*"))
    if name == "sealed/hello" and os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    done = bench.run("init", name)
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert sorted(bench.root.rglob("*")) == before


def test_the_package_takes_every_template_along():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {path for pattern in patterns["osmosis_ai.cli"] for path in TEMPLATES.parent.glob(pattern)}
    for framework in FRAMEWORKS:
        assert {template(file, framework) for file in FILES if file != "config.schema.json"} <= packed
