"""Who may import whom, read from the source: every import counts, also those inside functions."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "osmosis_ai"
FREE = {"types", "errors", "lean_http", "lean_server", "process"}  # known to all

# folder (or module) -> what it may import, beside itself and FREE: a folder means everything in it
MAY_IMPORT = {
    "types": set(),
    "errors": set(),
    "lean_http": set(),
    "lean_server": set(),
    "process": set(),
    "datasets": set(),
    "store": set(),
    "engine": set(),
    "train": set(),
    "providers": set(),
    "rewards": set(),
    "rollout": set(),
    "gateway": {
        "engine.base",
        "engine.completions",
        "store.base",
        "providers.base",
        "providers.parts",
        "providers.prices",
    },
    "controller": {"config", "datasets", "engine", "gateway", "providers", "store", "train"},
    "eval": {
        "controller.dispatch",
        "controller.judging",
        "controller.place",
        "controller.results",
        "datasets",
        "providers.prices",
        "rollout",
        "store.base",
    },
    "config": {"findings"},
    "findings": {"toml_places"},
    "toml_places": set(),
    "cli": {
        "config",
        "controller",
        "datasets",
        "engine.policy",
        "eval",
        "gateway",
        "providers",
        "rollout",
        "store",
        "toml_places",
        "train.batch",
    },
    "__main__": {"cli.main"},
    "pytest_plugin": {"config", "controller.opening", "controller.rollouts", "eval", "store.workspace"},
}
# Implementations behind a seam; all others know the seam (engine.base, store.base, providers.base).
CONCRETE = {
    "engine.torch": {"controller.rollouts"},
    "engine.scripted": set(),  # for tests
    "providers.openai_compatible": {"controller.external_model"},
    "providers.litellm": {"controller.external_model"},
    "providers.replay": {"controller.external_model"},
    "providers.scripted": {"controller.external_model"},
    "store.sqlite": {
        "controller.opening",
        "controller.gateway_worker",
        "cli.exchange",
        "cli.options",
        "cli.policy",
        "cli.runs",
    },
    "gateway.app": {"controller.rollouts", "controller.judging"},
    "gateway.fleet": {"controller.rollouts", "controller.fleet"},
}
HEAVY = {
    "agents", "aiohttp", "fastapi", "litellm", "matplotlib", "numpy", "pandas", "peft", "starlette",
    "strands", "torch", "transformers", "uvicorn",
}  # fmt: skip


def modules() -> Iterator[tuple[str, ast.Module]]:
    """("gateway.app", its syntax tree) for each file; a package's own file has the folder's name."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        yield name, ast.parse(file.read_text(encoding="utf-8"))


def imports_of_ours(tree: ast.Module) -> Iterator[str]:
    """ "gateway.app" for `import osmosis_ai.gateway.app` and `from osmosis_ai.gateway.app import Gateway`.

    `from osmosis_ai.gateway import app` gives "gateway.app" too; a name that is no module stays with its
    module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used: they hide who imports whom"
            joined = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if is_module(name) else str(node.module) for name in joined]
        else:
            continue
        for name in found:
            if name.startswith("osmosis_ai."):
                yield name.removeprefix("osmosis_ai.")


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def within(name: str, places: set[str]) -> bool:
    """Whether `name` is one of the places or lies in one: "store.base" is within {"store"}."""
    return any(name == place or name.startswith(place + ".") for place in places)


EDGES = [(name, target) for name, tree in modules() for target in imports_of_ours(tree)]


def test_every_folder_has_its_line_in_the_import_map():
    assert {name.split(".")[0] for name, _ in modules() if name} == set(MAY_IMPORT)


def test_nobody_imports_what_the_import_map_does_not_allow():
    wrong = [
        f"{name} imports {target}"
        for name, target in EDGES
        if not within(target, {name.split(".")[0], *FREE, *MAY_IMPORT.get(name.split(".")[0], set())})
    ]
    assert wrong == []


def test_implementations_behind_a_seam_are_known_where_a_run_is_opened_and_nowhere_else():
    wrong = [
        f"{name} imports {target}"
        for name, target in EDGES
        for place, knows in CONCRETE.items()
        if within(target, {place}) and name.split(".")[0] != place.split(".")[0] and name not in knows
    ]
    assert wrong == []


def test_the_loop_knows_the_seams_and_the_algorithm_only():
    known = {target for name, target in EDGES if name == "controller.loop"}
    allowed = {*FREE, "engine.base", "store.base", "train", "controller.checkpoints", "controller.schedule"}
    assert {target for target in known if not within(target, allowed)} == set()


def test_the_check_sees_imports_inside_functions():
    tree = ast.parse(
        "def late():\n    from osmosis_ai.engine import torch, policy\n    import osmosis_ai.cli.main"
    )
    assert list(imports_of_ours(tree)) == ["engine.torch", "engine.policy", "cli.main"]
    assert not within("engine.torch", {"engine.base", "types"})


@pytest.mark.parametrize(
    "code",
    [
        "import osmosis_ai",
        "import osmosis_ai.rollout",
        "from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, RolloutContext",
        "import osmosis_ai.cli.main",
        "import osmosis_ai.types, osmosis_ai.errors, osmosis_ai.config",
        "import osmosis_ai.train.losses, osmosis_ai.train.batch",
        "import osmosis_ai.engine.base, osmosis_ai.store.base, osmosis_ai.providers.base",
        "import osmosis_ai.controller.external_model, osmosis_ai.providers.litellm",
        "import osmosis_ai.controller.rollouts, osmosis_ai.cli.eval_session",
        "import osmosis_ai.rollout.server.__main__",
    ],
)
def test_what_every_process_pays_for_is_light(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert HEAVY & set(done.stdout.split()) == set()


def test_the_help_of_no_command_loads_what_the_commands_need():
    """All of them in one process: each module with a command, as its help imports it."""
    code = (
        "import importlib, sys\nfrom osmosis_ai.cli.main import COMMANDS\n"
        "for _, made in COMMANDS.values():\n"
        "    for place in [made] if isinstance(made, str) else [place for place, _ in made.values()]:\n"
        "        importlib.import_module(place.partition(':')[0])\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {"osmosis_ai.config", "osmosis_ai.controller.opening", "osmosis_ai.controller.rollouts"}
    assert (HEAVY | ours | {"httptools", "pydantic", "rich", "uvloop"}) & set(done.stdout.split()) == set()


def test_help_is_printed_without_click():
    code = (
        "import sys; sys.argv = ['osmosis', '--help']\n"
        "from osmosis_ai.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'click' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
