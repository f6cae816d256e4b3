"""The table of commands as Click groups. A command's module is imported when the command is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from osmosis_ai import __version__
from osmosis_ai.cli.main import ABOUT, COMMANDS, EXIT_CODES, command_names


class LazyGroup(click.Group):
    """A group whose commands are made when they are asked for; their one-line helps are known before."""

    def __init__(self, *args: Any, helps: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._helps = helps

    def make(self, name: str) -> click.Command:
        raise NotImplementedError

    def elsewhere(self, name: str) -> list[str]:
        """Where else a command of that name is."""
        return []

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._helps)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.make(cmd_name) if cmd_name in self._helps else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self._helps, n=1) or self.elsewhere(args[0])
            hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(self._helps)}."
            raise click.UsageError(f"no such command {args[0]!r}.{hint}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The one-line helps of the table, so that help imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._helps.items()))


def imported(place: str) -> click.Command:
    """The command at "module:attribute"."""
    module, _, attribute = place.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


class Root(LazyGroup):
    """`osmosis`: the groups of the table, and its commands without a group."""

    def make(self, name: str) -> click.Command:
        about, commands = COMMANDS[name]
        if isinstance(commands, str):
            return imported(commands)
        helps = {command: text for command, (_, text) in commands.items()}
        return CommandGroup(name, help=about, helps=helps, no_args_is_help=True)

    def elsewhere(self, name: str) -> list[str]:
        return [" ".join(found) for found in command_names() if len(found) == 2 and found[1] == name]


class CommandGroup(LazyGroup):
    """`osmosis GROUP`: the commands of one group."""

    def make(self, name: str) -> click.Command:
        assert self.name is not None
        commands = COMMANDS[self.name][1]
        assert not isinstance(commands, str)
        return imported(commands[name][0])


root = Root(
    "osmosis",
    help=f"{ABOUT}\n\n\b\n{EXIT_CODES}",
    helps={name: about for name, (about, _) in COMMANDS.items()},
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(__version__, "-V", "--version", prog_name="osmosis")(root)
