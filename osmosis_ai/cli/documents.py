"""What is generated from the code: `docs/config.md`, `docs/cli.md`, `docs/schemas`, `cli/completions.json`.

python -m osmosis_ai.cli.documents           write them
python -m osmosis_ai.cli.documents --check   exit code 1 when one is stale, naming it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.completion import completions
from osmosis_ai.cli.config import config_reference, config_schema
from osmosis_ai.cli.groups import root
from osmosis_ai.cli.lines import LINES
from osmosis_ai.cli.schemas import broken, command_schema

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = 90  # of the help, whatever terminal this runs in

CLI_HEAD = """\
# Command line

Generated from the commands by `make docs`.

Results go to standard output, messages and progress to standard error. With `--json` standard output is
one JSON object per line, each with `event`, `schema_version` and the fields that the command's schema in
[`schemas`](schemas) declares. A version may get further fields; when one goes or changes its type, the
version is raised.

Ctrl-C stops a run in order: what is finished is kept, and the same command goes on. Control characters in the
output of a model are shown as escapes, never sent to the terminal. There is no colour in what is piped, nor
with `NO_COLOR`, and no question where there is no terminal.
"""


def cli_reference() -> str:
    """`docs/cli.md`: the help of every command."""
    parts = [CLI_HEAD]
    top = click.Context(root, info_name="osmosis", terminal_width=COLUMNS, **root.context_settings)
    for context in commands(top):
        parts.append(f"## {context.command_path}\n\n```text\n{context.get_help().rstrip()}\n```\n")
    return "\n".join(parts)


def commands(context: click.Context) -> Iterator[click.Context]:
    """The command and all below it, in the order of the help."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from commands(click.Context(command, parent=context, info_name=name))


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2) + "\n"


def _line_schema(command: str) -> str:
    return _json(command_schema(command))


SCHEMAS = {command: f"docs/schemas/{command.replace(' ', '-')}.schema.json" for command in LINES}
# path in the repository -> what it holds
DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "docs/config.md": config_reference,
    "docs/cli.md": cli_reference,
    "docs/schemas/config.schema.json": lambda: _json(config_schema()),
    **{name: partial(_line_schema, command) for command, name in SCHEMAS.items()},
    "osmosis_ai/cli/completions.json": lambda: _json(completions(leaves())),
}


def leaves() -> dict[str, click.Command]:
    """Every command that is no group, by its name: "eval run"."""
    top = click.Context(root, info_name="", **root.context_settings)
    found = {context.command_path.strip(): context.command for context in commands(top)}
    return {name: command for name, command in found.items() if not isinstance(command, click.Group)}


def stale(folder: Path) -> list[Path]:
    """The documents in `folder` that are not what the code says today."""
    return [folder / name for name, make in DOCUMENTS.items() if _read(folder / name) != make()]


def broken_promises(folder: Path) -> list[str]:
    """What the schemas in `folder` promise to readers of --json and those of today do not."""
    return [
        f"{name}: {promise}"
        for command, name in SCHEMAS.items()
        if (text := _read(folder / name)) is not None
        for promise in broken(json.loads(text), command_schema(command))
    ]


def write(folder: Path) -> None:
    for name, make in DOCUMENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(make(), encoding="utf-8")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 when a document is stale.")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT, help="The repository.")
def main(check: bool, folder: Path) -> None:
    """Write the documents that are generated from the code."""
    if lost := broken_promises(folder):
        click.echo("promised to readers of --json and gone; keep it, or raise SCHEMA_VERSION:", err=True)
        click.echo("\n".join(lost), err=True)
        sys.exit(1)
    if not check:
        write(folder)
        return
    if found := stale(folder):
        names = ", ".join(str(path.relative_to(folder)) for path in found)
        click.echo(f"not what the code says: {names}. Run `make docs` and commit the result.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
