"""The README shows what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_code_in_the_readme_is_the_code_of_the_example_with_what_is_left_out_marked():
    [block] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    source = (ROOT / "examples" / "calculator" / "strands_agent.py").read_text()
    position = 0
    for piece in block.split("...\n")[1:]:
        found = source.find(piece, position)
        assert found >= 0, piece
        position = found + len(piece)


def test_no_placeholder_is_left_in_a_document():
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert "@@" not in path.read_text(), path


def test_what_the_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
