"""Where keys stand in a TOML file, in every way that TOML can write them."""

import tomllib

import pytest

from osmosis_ai.toml_places import place_of, places


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\n  b = 2", {"a": (1, 1), "b": (2, 3)}),
        ("[t]\na = 1", {"t": (1, 2), "t/a": (2, 1)}),
        ("[ t . u ]\na.b = 1", {"t": (1, 3), "t/u": (1, 7), "t/u/a": (2, 1), "t/u/a/b": (2, 3)}),
        ("[[t]]\na = 1\n[[t]]\na = 2", {"t": (1, 3), "t/a": (2, 1)}),
        ("a = { b = 1, c = { d = 2 } }", {"a": (1, 1), "a/b": (1, 7), "a/c": (1, 14), "a/c/d": (1, 20)}),
        ("a = {}\nb = [ { c = 1 }, {} ]\nd = 1", {"a": (1, 1), "b": (2, 1), "b/c": (2, 9), "d": (3, 1)}),
        ('a = """\nb = 1\n"""\nc = 2', {"a": (1, 1), "c": (4, 1)}),
        ("a = '''\n[b]''''\nc = 2", {"a": (1, 1), "c": (3, 1)}),
        ('a = "x # [y] \\" = z" # b = 1\nc = 2', {"a": (1, 1), "c": (2, 1)}),
        ("a = [\n  1, # b = 1\n  2,\n]\nc = 2", {"a": (1, 1), "c": (5, 1)}),
        ('"a b" = 1\n\'c.d\' = 2\n"\\u00e9" = 3', {"a b": (1, 1), "c.d": (2, 1), "é": (3, 1)}),
        ("a = 1979-05-27T07:32:00.5Z\r\nb = -1.5e3\r\n", {"a": (1, 1), "b": (2, 1)}),
        ("", {}),
    ],
)
def test_every_table_and_key_has_its_line_and_column(text, expected):
    tomllib.loads(text)
    assert {"/".join(path): place for path, place in places(text).items()} == expected


def test_a_key_that_is_not_there_has_the_place_of_its_table_or_of_the_file():
    text = "# head\n[run]\nseed = 1"
    assert place_of(text, "run", "name") == (2, 2)
    assert place_of(text, "llm", "model") == (1, 1)
