"""`osmosis`: the root command. Commands are imported when they are used, so that `--help` is instant."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import click

from osmosis_ai import __version__

EXIT_CODES = """\b
Exit codes: 0 done, 1 failed, 2 usage, 3 below a threshold,
4 infrastructure, 5 partial, 130 interrupted."""


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on use: name -> (module:attribute, help)."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self._lazy, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(self._lazy)}."
            raise click.UsageError(f"no such command {args[0]!r}.{hint}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The one-line helps of the table, so that help imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])


def group(name: str, help: str, lazy: Mapping[str, tuple[str, str]]) -> LazyGroup:
    return LazyGroup(name, help=help, lazy=lazy, no_args_is_help=True)


policy = group(
    "policy",
    "Make a policy.",
    {"new": ("osmosis_ai.cli.policy:new", "Make a small policy with random weights.")},
)
evals = group(
    "eval",
    "Evaluate a workflow with any model.",
    {"run": ("osmosis_ai.cli.eval:run", "Run every row of a dataset and report the rewards.")},
)
train = group(
    "train",
    "Train a policy with a workflow and its grader.",
    {"run": ("osmosis_ai.cli.train:run", "Train; the same command goes on where it stopped.")},
)
runs = group(
    "runs",
    "Look at what is stored.",
    {
        "list": ("osmosis_ai.cli.runs:list_runs", "All runs of the workspace, newest first."),
        "show": ("osmosis_ai.cli.runs:show", "One run: its steps, its rollouts, a rollout in full."),
    },
)

root = LazyGroup(
    "osmosis",
    help="Evaluate and train language-model agents with reinforcement learning.\n\n" + EXIT_CODES,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    lazy={
        "policy": ("osmosis_ai.cli.main:policy", "Make a policy."),
        "eval": ("osmosis_ai.cli.main:evals", "Evaluate a workflow with any model."),
        "train": ("osmosis_ai.cli.main:train", "Train a policy with a workflow and its grader."),
        "runs": ("osmosis_ai.cli.main:runs", "Look at what is stored."),
    },
)
click.version_option(__version__, "-V", "--version", prog_name="osmosis")(root)


def main() -> None:
    """Entry point: errors raised on purpose become one message and an exit code, without a traceback."""
    try:
        root.main(standalone_mode=False)
        sys.exit(0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)  # the reader of our output has seen enough
    except Exception as error:
        from osmosis_ai.errors import OsmosisError

        if not isinstance(error, OsmosisError):
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
