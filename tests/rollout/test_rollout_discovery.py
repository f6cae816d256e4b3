"""From an entrypoint to exactly one workflow, and what is said when that is not what it holds."""

import inspect
import itertools

import pytest

from osmosis_ai.errors import ConfigError, EntrypointError
from osmosis_ai.rollout import GraderContext, RolloutSample
from osmosis_ai.rollout.discovery import load_entrypoint
from osmosis_ai.rollout.grader import Judge

HEAD = "from osmosis_ai.rollout import *\n"
WORKFLOW = "class {}(AgentWorkflow):\n    async def run(self, ctx): ...\n"
GRADER = "class {}(Grader):\n    async def grade(self, ctx): ...\n"
counter = itertools.count()


@pytest.fixture
def write(tmp_path):
    def write(source: str, name: str | None = None) -> str:
        path = tmp_path / (name or f"entry_{next(counter)}.py")
        path.write_text(HEAD + source)
        return str(path)

    return write


def test_r25_one_workflow_is_found_and_everything_else_may_be_missing(write):
    found = load_entrypoint(write(WORKFLOW.format("Solve")))
    assert found.workflow.__name__ == "Solve"
    assert (found.workflow_config, found.grader, found.grader_config) == (None, None, None)


def test_r23_r25_grader_and_configs_are_found(write):
    source = WORKFLOW.format("Solve") + GRADER.format("Exact")
    found = load_entrypoint(
        write(source + "w = AgentWorkflowConfig(name='w')\ng = GraderConfig(name='g')\nw2 = w\n")
    )
    assert found.grader.__name__ == "Exact"
    assert (found.workflow_config.name, found.grader_config.name) == ("w", "g")


def test_r25_abstract_bases_do_not_count_and_aliases_count_once(write):
    source = (
        "class Base(AgentWorkflow):\n    pass\n"
        "class Solve(Base):\n    async def run(self, ctx): ...\n"
        "Alias = Solve\nTyped = AgentWorkflow[AgentWorkflowConfig]\n"
    )
    assert load_entrypoint(write(source)).workflow.__name__ == "Solve"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", "no AgentWorkflow found in"),
        ("class Base(AgentWorkflow):\n    pass\n", "Base is abstract: implement run"),
        (
            WORKFLOW.format("A") + WORKFLOW.format("B"),
            r"2 workflows found in .*: A \(entry_\d+\), B \(entry_\d+\)\. Keep one, or choose: workflow =",
        ),
        (WORKFLOW.format("A") + GRADER.format("G") + GRADER.format("H"), "2 graders found in .*: G .*, H "),
        (
            WORKFLOW.format("A") + "a = AgentWorkflowConfig(name='a')\nb = AgentWorkflowConfig(name='b')\n",
            "2 workflow configs found in .*: a, b",
        ),
    ],
)
def test_r23_r25_what_does_not_fit_is_listed(write, source, text):
    with pytest.raises(EntrypointError, match=text):
        load_entrypoint(write(source))


REWARDS = """
from osmosis_ai import osmosis_reward, osmosis_rubric

@osmosis_reward
def half(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
    return 0.5 if solution_str == ground_truth else 0.0

@osmosis_rubric
def judged(solution_str: str, ground_truth: str | None, extra_info: dict, **kwargs) -> float:
    return float(len(kwargs["judge"].api_key))
"""


@pytest.mark.parametrize(("named", "reward"), [("half", 0.5), ("judged", 3.0)])
async def test_r11_a_reward_function_is_a_grader_and_gets_the_judge_if_it_takes_one(write, named, reward):
    path = write(WORKFLOW.format("Solve") + REWARDS)
    with pytest.raises(EntrypointError, match=r"2 functions with @osmosis_reward found in .*: half, judged"):
        load_entrypoint(path)
    grader = load_entrypoint(path, grader=named).grader
    sample = RolloutSample(id="s", messages=[{"role": "assistant", "content": [{"text": "148"}]}])
    ctx = GraderContext("148", {"s": sample}, judge=Judge("http://127.0.0.1:1/v1", "key"))
    await grader().grade(ctx)
    assert sample.reward == reward
    assert inspect.getfile(grader) == path  # the identity of a grading is that of the file


def test_r25_an_explicit_name_settles_it(write):
    path = write(WORKFLOW.format("A") + WORKFLOW.format("B") + GRADER.format("G") + GRADER.format("H"))
    found = load_entrypoint(path, workflow="B", grader="H")
    assert (found.workflow.__name__, found.grader.__name__) == ("B", "H")
    with pytest.raises(EntrypointError, match=r"workflow 'C' is not in .*; found: A, B"):
        load_entrypoint(path, workflow="C", grader="H")
    with pytest.raises(EntrypointError, match=r"workflow 'G' .* is no subclass of AgentWorkflow"):
        load_entrypoint(path, workflow="G", grader="H")


def test_a_file_can_import_its_neighbours(write):
    write("ANSWER = 42\n", name="neighbour_of_entry.py")
    found = load_entrypoint(write("from neighbour_of_entry import ANSWER\n" + WORKFLOW.format("Solve")))
    assert found.workflow.__name__ == "Solve"


def test_two_files_of_the_same_name_are_two_modules(tmp_path):
    found = []
    for folder in ("one", "two"):
        path = tmp_path / folder / "same_name_entry.py"
        path.parent.mkdir()
        path.write_text(HEAD + WORKFLOW.format(folder.title()))
        found.append(load_entrypoint(str(path)).workflow.__name__)
    assert found == ["One", "Two"]


def test_a_module_of_the_working_directory_can_be_named(write, monkeypatch, tmp_path):
    write(WORKFLOW.format("Solve"), name="dotted_entry.py")
    monkeypatch.chdir(tmp_path)
    assert load_entrypoint("dotted_entry").workflow.__name__ == "Solve"
    with pytest.raises(EntrypointError, match="there is no module 'dotted_entry_2'"):
        load_entrypoint("dotted_entry_2")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "x = 1\nraise RuntimeError('no key')\n",
            r"RuntimeError: no key\n  .*entry_\d+.py:3: raise RuntimeError",
        ),
        ("import sys\nsys.exit(1)\n", r"SystemExit: 1\n  .*entry_\d+.py:3: sys.exit"),
        ("def broken(:\n", "SyntaxError"),
    ],
)
def test_an_import_that_fails_shows_the_users_own_line(write, source, text):
    with pytest.raises(EntrypointError, match=text):
        load_entrypoint(write(source))


def test_no_such_file_names_it_and_the_working_directory():
    with pytest.raises(
        EntrypointError, match=r"no such entrypoint: 'missing/agent.py' \(working directory: /"
    ):
        load_entrypoint("missing/agent.py")


CONFIG = (
    "class C(AgentWorkflowConfig):\n    name: str = 'c'\n    rounds: int = 8\n    temperature: float = 1.0\n"
    "class Solve(AgentWorkflow[C]):\n    async def run(self, ctx): ...\n"
)


def test_r27_toml_values_are_merged_over_the_config(write):
    found = load_entrypoint(
        write(CONFIG + "c = C(rounds=9)\n"),
        workflow_overrides={"temperature": 0, "extra": "yes", "concurrency": {"max_concurrent": 4}},
    )
    config = found.workflow_config
    assert (config.rounds, config.temperature, config.extra) == (9, 0.0, "yes")
    assert config.concurrency.max_concurrent == 4


def test_r27_toml_values_work_without_an_instance_in_the_module(write):
    found = load_entrypoint(write(CONFIG), workflow_overrides={"rounds": 3})
    assert (type(found.workflow_config).__name__, found.workflow_config.rounds) == ("C", 3)
    plain = load_entrypoint(write(WORKFLOW.format("Solve")), workflow_overrides={"rounds": 3})
    assert (plain.workflow_config.name, plain.workflow_config.rounds) == ("Solve", 3)


def test_r27_all_wrong_types_are_reported_at_once(write):
    with pytest.raises(ConfigError) as raised:
        load_entrypoint(write(CONFIG), workflow_overrides={"rounds": "many", "temperature": [], "extra": 1})
    assert [finding.split(":")[0] for finding in raised.value.findings] == [
        "workflow.rounds",
        "workflow.temperature",
    ]
    assert "got 'many'" in raised.value.findings[0]
