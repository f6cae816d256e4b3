"""The models of `osmosis_ai/config.py`, as `osmosis config schema` for editors and as `docs/config.md`."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON


@click.command(epilog="Example: osmosis config schema > config.schema.json")
@JSON
def schema(as_json: bool) -> None:
    """Print the JSON Schema of the TOML file, with which an editor completes and checks it.

    Editors that know TOML (Taplo, Even Better TOML) read it when the first line of the file names it:
    #:schema ./config.schema.json
    """
    display = Display(as_json=as_json)
    display.data({"event": "config_schema", "schema": config_schema()})
    display.out(json.dumps(config_schema(), indent=2))


def config_schema() -> dict[str, Any]:
    """The JSON Schema of the whole file: every key with its type, limits, default and meaning."""
    from osmosis_ai.config import Config

    found = _plain(Config.model_json_schema())
    assert isinstance(found, dict)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Osmosis", **found}


def _plain(node: Any) -> Any:
    """Without what TOML does not have (null) and what says nothing (titles, defaults of whole tables)."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _plain(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and (value is None or isinstance(value, dict)))
    }
    kinds = [kind for kind in kept.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1:
        kept = {**kinds[0], **{key: value for key, value in kept.items() if key != "anyOf"}}
    return kept


def config_reference() -> str:
    """`docs/config.md`: every key with its type, default and meaning, generated from its models."""
    from osmosis_ai.config import TABLES

    lines = [
        "# Configuration",
        "",
        "Generated from `osmosis_ai/config.py` by `make docs`. Eval and train read the same file.",
        "Paths are relative to the file. Unknown keys are errors. All that is wrong is said at once, each",
        "finding with `file:line:column`, the nearest key, and what is allowed.",
        "",
        "An editor completes and checks the file with [its JSON Schema](schemas/config.schema.json), which",
        "`osmosis config schema` prints too, when its first line is `#:schema ./config.schema.json`.",
    ]
    for name, table in TABLES.items():
        lines += ["", f"## [{name}]", "", table.__doc__ or "", "", "| key | type | default | meaning |"]
        lines.append("| --- | --- | --- | --- |")
        for key, info in table.model_fields.items():
            default = "required" if info.is_required() else _default(info.default)
            lines.append(f"| `{key}` | {_kind(info.annotation)} | {default} | {info.description} |")
    lines += [
        "",
        "## [workflow]",
        "",
        "Free keys: they override fields of the workflow's own config object.",
        "",
    ]
    return "\n".join(lines)


def _default(value: Any) -> str:
    """A default as it would stand in the file; a key that may be absent has none."""
    return "none" if value is None else f"`{json.dumps(value)}`"


def _kind(annotation: Any) -> str:
    """`Literal["none", "lora"]` as the values to choose from, `int | None` as integer."""
    if get_origin(annotation) is Literal:
        return " or ".join(_default(value) for value in get_args(annotation))
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    names = {str: "string", int: "integer", float: "number", bool: "true or false"}
    return " or ".join(names.get(kind, str(kind)) for kind in kinds)
