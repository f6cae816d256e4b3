"""The page: one HTML file that needs nothing else and can reach nothing else.

Its content security policy allows the one script and the one style sheet in it, by their hash, and no
connection at all. Conversations are JSON in `<script type="application/json">` blocks in which no `<` is
left; the script puts them on the page as text nodes, so what a model writes is never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from osmosis_ai.eval.report.content import Content

HERE = Path(__file__).parent


def page(content: Content) -> bytes:
    """The whole file, UTF-8."""
    import jinja2  # 40 ms that only a report pays

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    style, script = _read("report.css"), _read("report.js")
    text = environment.get_template("report.html.jinja").render(
        content=content,
        style=style,
        script=script,
        policy=(
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        index=json_block(content.index),
        chunks=[json_block(chunk) for chunk in content.chunks],
    )
    return text.encode("utf-8", "backslashreplace")  # half of a surrogate pair stays an escape of JSON


def json_block(value: Any) -> str:
    """JSON that is safe inside a script element: `</script>` becomes `\\u003c/script\\u003e`."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
