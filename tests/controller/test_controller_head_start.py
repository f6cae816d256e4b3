"""The user's code is imported while the command still reads its configuration, once, in one process."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from waiting import until

from osmosis_ai.controller.head_start import HeadStart
from osmosis_ai.controller.user_server import UserCode, UserServer
from osmosis_ai.errors import EntrypointError, InfrastructureError

AGENT = """
import os
import sys
from pathlib import Path

from osmosis_ai.rollout import AgentWorkflow, Grader

print("imported with", os.environ.get("MODEL_KEY"), os.environ.get("OTHER"))
with Path(__file__).with_name("imports").open("a") as file:
    file.write(f"{os.getpid()} ")


class Workflow(AgentWorkflow):
    async def run(self, ctx): ...


class Exact(Grader):
    async def grade(self, ctx): ...
"""
CONFIG = """
[rollout]
entrypoint = "agent.py"
[llm]
api_key_env = "MODEL_KEY"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("MODEL_KEY", "secret")
    monkeypatch.setenv("OTHER", "kept")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "eval.toml").write_text(CONFIG)
    return tmp_path


def server(project: Path, head_start: HeadStart, withheld: frozenset[str] = frozenset({"MODEL_KEY"})):
    code = UserCode(str(project / "agent.py"))
    return UserServer(code, project / "log", withheld, head_start)


async def served(one: UserServer) -> None:
    await one.ensure_running()
    await one.stop()


def imports(project: Path) -> list[str]:
    return (project / "imports").read_text().split()


def is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def test_what_was_imported_ahead_is_served_and_what_it_printed_is_in_the_log(project):
    with HeadStart.of_config(project / "eval.toml", {}) as head_start:
        head_start.begin()
        asyncio.run(served(server(project, head_start)))
    assert len(imports(project)) == 1
    assert (project / "log").read_text() == "imported with None kept\n"


def test_a_server_that_wants_other_keys_withheld_makes_its_own_process(project):
    with HeadStart.of_config(project / "eval.toml", {"llm.api_key_env": ""}) as head_start:
        head_start.begin()
        asyncio.run(served(server(project, head_start)))
    assert "imported with None kept\n" in (project / "log").read_text()
    assert "secret" not in (project / "log").read_text()


def test_the_process_is_served_once_and_the_next_life_has_one_of_its_own(project):
    async def twice() -> None:
        one = server(project, head_start)
        await served(one)
        await served(one)

    with HeadStart.of_config(project / "eval.toml", {}) as head_start:
        head_start.begin()
        head_start.begin()
        head_start.begin()
        asyncio.run(twice())
    assert len(set(imports(project))) == 2
    assert (project / "log").read_text() == 2 * "imported with None kept\n"


def test_a_process_that_nobody_takes_is_gone_after_the_block(project):
    with HeadStart.of_config(project / "eval.toml", {}) as head_start:
        head_start.begin()
        assert head_start._process is not None
        pid = head_start._process._process.pid
    assert not is_running(str(pid))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("[rollout", {}),
        ("rollout = 3", {}),
        ("[rollout]\nentrypoint = 3", {}),
        ("[rollout]\nurl = 'http://127.0.0.1:9'", {}),
        ("llm = 3\n[rollout]\nentrypoint = 'agent.py'", {}),
        (CONFIG, {"rollout.entrypoint": ""}),
    ],
)
def test_nothing_begins_without_an_entrypoint_that_can_be_read(project, text, overrides):
    (project / "eval.toml").write_text(text)
    with HeadStart.of_config(project / "eval.toml", overrides) as head_start:
        head_start.begin()
        assert head_start._process is None


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="there it is a path like others")
def test_an_entrypoint_that_leads_in_a_circle_begins_nothing(project):
    (project / "circle").symlink_to(project / "circle")
    (project / "eval.toml").write_text(CONFIG.replace("agent.py", "circle/agent.py"))
    head_start = HeadStart.of_config(project / "eval.toml", {})
    head_start.begin()
    assert head_start._process is None


def test_a_configuration_in_a_pipe_is_left_to_who_reads_it_whole(project):
    os.mkfifo(project / "pipe.toml")
    head_start = HeadStart.of_config(project / "pipe.toml", {})  # reading it would never end
    head_start.begin()
    assert head_start._process is None


def test_keys_that_an_override_names_are_withheld_too(project):
    tables = {"rollout": {"entrypoint": "agent.py"}, "llm": {"model": "m", "api_key_env": "OTHER"}}
    overrides = {"judge.api_key_env": "MODEL_KEY"}
    with HeadStart.of_tables(tables, overrides, project / "test.toml") as head_start:
        head_start.begin()
        both = frozenset({"MODEL_KEY", "OTHER"})
        asyncio.run(served(server(project, head_start, both)))
    assert "imported with None None" in (project / "log").read_text()
    assert len(imports(project)) == 1
    assert "judge" not in tables


SLEEPS = """
import subprocess, sys, time
from pathlib import Path

asked = subprocess.run(["cat"], capture_output=True, timeout=20).stdout  # nothing at all
sleeper = subprocess.Popen(["sleep", "60"])
Path(__file__).with_name("pids").write_text(f"{asked!r} {sleeper.pid}")
time.sleep(60)
"""


def begun(project: Path) -> tuple[HeadStart, str, str]:
    """A head start whose import hangs, what a program that it started has read, and another's process id."""
    (project / "agent.py").write_text(SLEEPS)
    head_start, said = HeadStart.of_config(project / "eval.toml", {}), project / "pids"
    head_start.begin()
    asyncio.run(until(lambda: said.exists() and " " in said.read_text()))
    read, pid = said.read_text().split()
    return head_start, read, pid


def test_programs_that_are_started_at_import_read_nothing_and_end_with_it(project):
    head_start, read, pid = begun(project)
    with head_start:
        assert read == "b''"
        assert is_running(pid)
    asyncio.run(until(lambda: not is_running(pid) or has_ended(pid)))


def has_ended(pid: str) -> bool:
    """Though nobody has taken note of it: it has no parent any more."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_an_import_that_hangs_does_not_outlive_the_parent(project):
    head_start, _, _ = begun(project)
    with head_start:
        process = head_start._process._process
        process.stdin.close()  # as the end of the parent does
        assert process.wait(20) == 0


def test_a_file_that_is_not_there_begins_nothing(project):
    head_start = HeadStart.of_config(project / "missing.toml", {})
    head_start.begin()
    assert head_start._process is None


def test_what_is_wrong_with_the_code_is_said_as_without_a_head_start(project):
    (project / "agent.py").write_text("print('so far')\nraise ValueError('boom')")
    with (
        HeadStart.of_config(project / "eval.toml", {}) as head_start,
        pytest.raises(EntrypointError, match=r"agent\.py:2: raise ValueError\('boom'\)"),
    ):
        head_start.begin()
        asyncio.run(served(server(project, head_start)))
    assert (project / "log").read_text() == "so far\n"


def test_code_that_ends_the_process_while_it_is_imported_leaves_its_last_words(project):
    (project / "agent.py").write_text("import os\nos.write(2, b'last words')\nos._exit(7)")
    with (
        HeadStart.of_config(project / "eval.toml", {}) as head_start,
        pytest.raises(InfrastructureError, match=r"ended with status 7 before it was ready(?s:.)*last words"),
    ):
        head_start.begin()
        asyncio.run(served(server(project, head_start)))
