"""Which code a command is about: `-m module:attr`, or a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from osmosis_ai.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Code:
    """An entrypoint, and which workflow or agent loop of it; None: the only one."""

    entrypoint: str  # a module, or the absolute path of a .py file
    attribute: str | None


def code_options(command: F) -> F:
    """-m MODULE:ATTR, and ENTRYPOINT; `read_code` makes one of the two."""
    command = click.option(
        "-m",
        "--module",
        "--agent",
        "module",
        metavar="MODULE:ATTR",
        help="The agent loop or workflow in a module of the working directory, or in FILE.py.",
    )(command)
    return click.argument("entrypoint", required=False, metavar="[ENTRYPOINT.py]")(command)


def read_code(entrypoint: str | None, module: str | None) -> Code:
    """What the two options say together. Raises UsageError.

    Also makes the working directory importable, and keeps frameworks from phoning home when imported.
    """
    if (entrypoint is None) == (module is None):
        raise UsageError("say which code: either -m module:attr or a path to a .py file")
    name, _, attribute = (module or entrypoint or "").partition(":")
    if name.endswith(".py"):
        name = str(Path(name).absolute())
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    return Code(name, attribute or None)
