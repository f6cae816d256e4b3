"""`osmosis init`: a project that runs, with tests."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON
from osmosis_ai.errors import UsageError

TEMPLATES = Path(__file__).with_name("templates")
NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"  # of a run and of a Python package at once
NAME_RULE = "at most 96 letters, digits, '.', '_' and '-', with a letter or digit first and last"

# framework -> (the package that it needs, what the project requires to have it)
FRAMEWORKS = {
    "none": ("openai", "osmosis-ai"),
    "strands": ("strands", "osmosis-ai"),
    "openai-agents": ("agents", "osmosis-ai[openai-agents]"),
}
# file of the project -> what it is; a template of the framework's folder goes before a common one
FILES = {
    "agent.py": "the agent and its grader",
    "model.py": "a stand-in for a model: no key, no network",
    "data/orders.jsonl": "20 rows",
    "eval.toml": "which agent, which rows, which model",
    "tests/test_agent.py": "tests of the agent, and the eval as a test",
    "pyproject.toml": "what the project needs, and where pytest looks",
    "config.schema.json": "with which your editor completes and checks eval.toml",
    "README.md": "what to do next",
    ".gitignore": "",
}


@click.command(epilog="Example: osmosis init hello")
@click.argument("name", type=click.Path(path_type=Path))
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    default="none",
    show_default=True,
    help="What the agent is written in; none: OpenAI's client and nothing else.",
)
@JSON
def init(name: Path, framework: str, as_json: bool) -> None:
    """Write a project that runs at once: an agent, its grader, rows, a config and tests.

    NAME is the folder, which must be empty or new; its last part names the project and its run. A scripted
    model answers, so that the first eval needs no key, no network and no GPU.
    """
    display = Display(as_json=as_json)
    folder = checked_folder(name)
    package, requirement = FRAMEWORKS[framework]
    write_project(folder, framework, {"PROJECT_NAME": folder.name, "REQUIREMENT": requirement})
    display.data({"event": "created", "path": str(folder), "framework": framework, "files": list(FILES)})
    display.out("\n".join(created_lines(name, folder.name)))
    if find_spec(package) is None:
        display.note(f"note: {package} is not installed: pip install '{requirement}'")


def checked_folder(name: Path) -> Path:
    """The absolute folder of a new project. Raises UsageError."""
    folder = name.absolute() if name.name else name.resolve()  # "." has no name of its own
    if not re.fullmatch(NAME, folder.name):
        raise UsageError(f"{folder.name!r} cannot name a project, which must be {NAME_RULE}")
    for above in (folder, *folder.parents):
        if above.exists() and not above.is_dir():
            raise UsageError(f"no folder can be made at {name}: {above} is a file; choose another name")
    if folder.is_dir() and (there := sorted(path.name for path in folder.iterdir())):
        raise UsageError(
            f"{name} exists and is not empty (it has {', '.join(there[:3])}{', ...' * (len(there) > 3)}); "
            "choose another name: nothing is overwritten"
        )
    return folder


def write_project(folder: Path, framework: str, words: dict[str, str]) -> None:
    """All files, with `words` put in for their placeholders. Raises UsageError where it cannot be written."""
    try:
        for file in FILES:
            text = text_of(file, framework)
            for placeholder, word in words.items():
                text = text.replace(placeholder, word)
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error}; choose another place") from error


def text_of(file: str, framework: str) -> str:
    if file == "config.schema.json":
        from osmosis_ai.cli.config import config_schema

        return json.dumps(config_schema(), indent=2) + "\n"
    return template(file, framework).read_text(encoding="utf-8")


def template(file: str, framework: str) -> Path:
    own = TEMPLATES / framework / file
    return own if own.is_file() else TEMPLATES / file.removeprefix(".")  # packages leave out hidden files


def created_lines(name: Path, project: str) -> list[str]:
    """What is there, and what to do with it."""
    width = max(map(len, FILES))
    files = [f"  {file:<{width}}  {what}".rstrip() for file, what in FILES.items()]
    go = [] if str(name) == "." else [f"  cd {name}"]
    return [
        f"{project}: a project that runs",
        *files,
        "next:",
        *go,
        "  osmosis eval run eval.toml",
        f"  osmosis runs show {project} --row 0",
    ]
