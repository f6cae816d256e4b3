"""JSON Schemas of what `--json` prints, from the declarations in `lines`, and what they promise.

A schema of a version keeps its promises: what was there stays there, of the same type. `broken` compares, and
`python -m osmosis_ai.cli.documents` refuses to replace a published schema by one that breaks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from osmosis_ai.cli.display import SCHEMA_VERSION
from osmosis_ai.cli.lines import LINES, Line

Schema = dict[str, Any]


class _Printed(GenerateJsonSchema):
    """Of what is written: a field of a dataclass is there also when it has its default."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)


def command_schema(command: str) -> Schema:
    """The schema of one line that `osmosis COMMAND --json` prints. Fields may be added to it."""
    definitions: Schema = {}
    kinds = [_line_schema(line, definitions) for line in LINES[command]]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of osmosis {command} --json",
        **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}),
    }
    return schema | ({"$defs": definitions} if definitions else {})


def _line_schema(line: Line, definitions: Schema) -> Schema:
    properties: Schema = {"event": {"const": line.event}, "schema_version": {"const": SCHEMA_VERSION}}
    required = list(properties)
    for kind in line.fields:
        found = TypeAdapter(kind).json_schema(mode="serialization", schema_generator=_Printed)
        definitions |= found.get("$defs", {})
        properties |= found["properties"]
        required += found.get("required", [])
    return {"type": "object", "properties": _without_titles(properties), "required": required}


def _without_titles(properties: Schema) -> Schema:
    return {name: {k: v for k, v in about.items() if k != "title"} for name, about in properties.items()}


def broken(published: Schema, schema: Schema) -> list[str]:
    """Promises of the published schema that the other one does not make; none when the version is another."""
    old, new = set(promises(published)), set(promises(schema))
    if versions(published) != versions(schema):
        return []
    return sorted(old - new)


def versions(schema: Schema) -> set[int]:
    return {
        kind["properties"]["schema_version"]["const"]
        for kind in schema.get("anyOf", [schema])
        if "schema_version" in kind.get("properties", {})
    }


def promises(schema: Schema) -> Iterator[str]:
    """ "rollout.reward: number or null" for each field of each line, however deep; "always" if required."""
    for kind in schema.get("anyOf", [schema]):
        event = kind["properties"]["event"]["const"]
        yield from _of_object(event, kind, schema.get("$defs", {}))


def _of_object(path: str, node: Schema, definitions: Mapping[str, Schema]) -> Iterator[str]:
    for name, about in node.get("properties", {}).items():
        always = ", always" if name in node.get("required", []) else ""
        kinds = list(_alternatives(about, definitions))
        yield f"{path}.{name}: {' or '.join(sorted({_kind(kind) for kind in kinds}))}{always}"
        for kind in kinds:
            yield from _of_object(f"{path}.{name}", kind, definitions)
            if isinstance(kind.get("items"), dict):
                for item in _alternatives(kind["items"], definitions):
                    yield from _of_object(f"{path}.{name}[]", item, definitions)


def _alternatives(node: Schema, definitions: Mapping[str, Schema]) -> Iterator[Schema]:
    if "$ref" in node:
        yield from _alternatives(definitions[node["$ref"].rpartition("/")[2]], definitions)
    elif "anyOf" in node:
        for kind in node["anyOf"]:
            yield from _alternatives(kind, definitions)
    else:
        yield node


def _kind(node: Schema) -> str:
    """A constant is its own kind; of a choice more values may come."""
    return str(node.get("const", node.get("type", "anything")))
