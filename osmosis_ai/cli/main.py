"""`osmosis`: the table of commands, and how a command line ends in an exit code.

Click is imported when a command is used, and what a command needs when that command is: help is instant.
"""

import gc
import sys

from osmosis_ai import __version__

ABOUT = "Evaluate and train language-model agents with reinforcement learning."
EXIT_CODES = """\
Exit codes: 0 done, 1 failed, 2 usage, 3 below a threshold,
4 infrastructure, 5 partial, 130 interrupted."""

# group -> (help, command -> (module:attribute, help)), or a command without a group -> (help,
# module:attribute); the order is that of the help
COMMANDS: dict[str, tuple[str, str | dict[str, tuple[str, str]]]] = {
    "init": ("Write a project that runs.", "osmosis_ai.cli.init:init"),
    "doctor": ("Check this machine for what a run needs.", "osmosis_ai.cli.doctor:doctor"),
    "validate": ("Check an agent loop or workflow.", "osmosis_ai.cli.validate:validate"),
    "test": ("Run an agent loop or workflow on a dataset, step by step too.", "osmosis_ai.cli.test:test"),
    "serve": ("Serve an agent loop or workflow over HTTP.", "osmosis_ai.cli.serve:serve"),
    "dataset": (
        "Look at a dataset.",
        {
            "validate": ("osmosis_ai.cli.dataset:validate", "Say everything that is wrong with a file."),
            "preview": ("osmosis_ai.cli.dataset:preview", "Rows, as a workflow and its grader get them."),
        },
    ),
    "policy": (
        "Make a policy.",
        {"new": ("osmosis_ai.cli.policy:new", "Make a small policy with random weights.")},
    ),
    "eval": (
        "Evaluate a workflow with any model.",
        {
            "run": ("osmosis_ai.cli.eval:run", "Run every row of a dataset and report the rewards."),
            "submit": ("osmosis_ai.cli.submit:submit_eval", "Check an eval before it runs (--dry-run)."),
            "compare": ("osmosis_ai.cli.compare:compare_runs", "Two runs over the same rows, side by side."),
            "grade": ("osmosis_ai.cli.grade:grade", "Another grader over stored rollouts."),
        },
    ),
    "train": (
        "Train a policy with a workflow and its grader.",
        {
            "run": ("osmosis_ai.cli.train:run", "Train; the same command goes on where it stopped."),
            "submit": ("osmosis_ai.cli.submit:submit_train", "Check a training before it runs (--dry-run)."),
        },
    ),
    "runs": (
        "Look at what is stored.",
        {
            "list": ("osmosis_ai.cli.runs:list_runs", "All runs of the workspace, newest first."),
            "show": ("osmosis_ai.cli.runs:show", "One run: its steps, its rollouts, a rollout in full."),
            "wire": ("osmosis_ai.cli.wire:wire", "The calls of a rollout, byte for byte as they came."),
            "delete": ("osmosis_ai.cli.retention:delete", "Delete runs with all that is theirs."),
            "prune": ("osmosis_ai.cli.retention:prune", "Delete old runs, by age and by number."),
            "export": ("osmosis_ai.cli.exchange:export_run", "A run as JSON Lines, ATIF or Parquet."),
            "import": ("osmosis_ai.cli.exchange:import_file", "A run from JSON Lines."),
        },
    ),
    "config": (
        "The configuration file.",
        {"schema": ("osmosis_ai.cli.config:schema", "JSON Schema of the TOML, for editors.")},
    ),
    "drift": ("Where a run's conversations broke, and why.", "osmosis_ai.cli.drift:drift"),
    "report": ("A run as one HTML file.", "osmosis_ai.cli.report:report"),
    "completion": ("Completion for bash, zsh or fish.", "osmosis_ai.cli.completion:completion"),
    "sql": ("SQL on what is stored, read only.", "osmosis_ai.cli.sql:sql"),
}

HELP = """\
Usage: osmosis [OPTIONS] COMMAND [ARGS]...

  {about}

  {exit_codes}

Options:
  -V, --version  Show the version and exit.
  -h, --help     Show this message and exit.

Commands:
{commands}
"""


def command_names() -> list[tuple[str, ...]]:
    """("init",), ("eval", "run"), ...: all commands, in the order of the help."""
    return [
        (group, *names)
        for group, (_, commands) in COMMANDS.items()
        for names in ([()] if isinstance(commands, str) else [(name,) for name in commands])
    ]


def help_text() -> str:
    """What Click prints for `osmosis --help`, to the letter (a test compares), without Click."""
    width = max(map(len, COMMANDS))
    return HELP.format(
        about=ABOUT,
        exit_codes=EXIT_CODES.replace("\n", "\n  "),
        commands="\n".join(f"  {name:<{width}}  {about}" for name, (about, _) in COMMANDS.items()),
    )


def main() -> None:
    """Entry point: errors raised on purpose become one message and an exit code, without a traceback."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(help_text())
        sys.exit(0)
    if sys.argv[1:] in (["--version"], ["-V"]):
        sys.stdout.write(f"osmosis, version {__version__}\n")
        sys.exit(0)
    if sys.argv[1:2] == ["__complete"]:
        from osmosis_ai.cli.complete import main as complete

        complete(sys.argv[2:])
        sys.exit(0)
    gc.set_threshold(100_000)  # of what is imported hardly anything is garbage; 700 is for other programs
    import click

    from osmosis_ai.cli.groups import root

    try:
        status = root.main(prog_name="osmosis", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except SystemExit:
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):  # by Click, which then ends with 1
            sys.exit(0)  # the reader of our output has seen enough: `| head`
        raise
    except Exception as error:
        from osmosis_ai.errors import OsmosisError

        if not isinstance(error, OsmosisError):
            raise
        from osmosis_ai.cli.transcript import printable

        click.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    finally:
        gc.freeze()  # Python looks for garbage among all that was imported before it ends: 30 ms and more
