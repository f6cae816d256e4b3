"""`osmosis completion`: the scripts with which shells ask `complete`, and the table that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON

BASH = """\
# osmosis completion for bash
_osmosis() {
    local IFS=$'\\n'
    COMPREPLY=($(osmosis __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]]; then compopt -o nospace; fi
}
complete -F _osmosis osmosis
"""
ZSH = """\
#compdef osmosis
# osmosis completion for zsh; compinit comes before it
_osmosis() {
    local -a found
    found=("${(@f)$(osmosis __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -S '' -- ${(M)found:#*[/=]}
    compadd -- ${found:#*[/=]}
}
if [[ $funcstack[1] == _osmosis ]]; then _osmosis "$@"; else compdef _osmosis osmosis; fi
"""
FISH = """\
# osmosis completion for fish
function __osmosis_complete
    set -l words (commandline -opc) (commandline -ct)
    osmosis __complete $words[2..-1] 2>/dev/null
end
complete -c osmosis -f -a '(__osmosis_complete)'
"""
RUN_IDS = {"run_id", "run_ids", "first", "second", "from_run"}  # parameters that are the id of a run
TOMLS = {"config"}
FILES = {"entrypoint", "module", "dataset", "policy"}  # texts that are paths, or may be

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@click.command(epilog="Example: osmosis completion bash")
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
@JSON
def completion(shell: str, as_json: bool) -> None:
    """Print the completion of commands, options, run ids, config keys and files for a shell.

    \\b
    bash  in ~/.bashrc:  eval "$(osmosis completion bash)"
    zsh   in ~/.zshrc:   eval "$(osmosis completion zsh)"
    fish  once:          osmosis completion fish > ~/.config/fish/completions/osmosis.fish
    """
    display = Display(as_json=as_json)
    display.data({"event": "completion", "shell": shell, "script": SCRIPTS[shell]})
    display.out(SCRIPTS[shell].rstrip("\n"))


def completions(commands: Mapping[str, click.Command]) -> dict[str, Any]:
    """`completions.json`: what each command takes, so that completing does not import it."""
    from osmosis_ai.config import TABLES

    keys = [f"{name}.{key}" for name, table in TABLES.items() for key in table.model_fields]
    return {"commands": {name: _takes(command) for name, command in commands.items()}, "keys": keys}


def _takes(command: click.Command) -> dict[str, Any]:
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    return {
        "options": {name: _kind(option) for option in options for name in option.opts},
        "repeated": [name for option in options if option.multiple for name in option.opts],
        "arguments": [_kind(argument) for argument in arguments],
        "many": any(argument.nargs == -1 for argument in arguments),
    }


def _kind(param: click.Parameter) -> str | list[str] | None:
    """See `complete.Kind`."""
    if isinstance(param, click.Option) and param.is_flag:
        return None
    if isinstance(param.type, click.Choice):
        return [str(choice) for choice in param.type.choices]
    named = {**dict.fromkeys(RUN_IDS, "run"), **dict.fromkeys(TOMLS, "toml"), "settings": "key"}
    if param.name in named:
        return named[param.name]
    return "path" if isinstance(param.type, click.Path) or param.name in FILES else "value"
