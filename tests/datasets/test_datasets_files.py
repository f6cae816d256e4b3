"""Dataset files -> rows, and what is said about bad ones."""

import hashlib
import json
import random
import tracemalloc
from datetime import datetime

import pyarrow
import pytest
from pyarrow import parquet

from osmosis_ai.datasets import Selection, dataset_fingerprint, load_rows, open_dataset
from osmosis_ai.errors import DatasetError
from osmosis_ai.types import Row


@pytest.fixture
def write(tmp_path):
    def write(content, name="train.jsonl"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def jsonl(*items):
    return "\n".join(json.dumps(item) for item in items) + "\n"


def findings(path, **options):
    with pytest.raises(DatasetError) as caught:
        load_rows(path, **options)
    return [line.removeprefix(str(path)) for line in str(caught.value).splitlines()]


def user(text):
    return {"role": "user", "content": text}


# --- good files


def test_a_jsonl_line_becomes_a_row(write):
    item = {
        "system_prompt": "Use tools.",
        "user_prompt": "3 * 4?",
        "ground_truth": "12",
        "metadata": {"a": 1},
    }
    path = write(jsonl({**item, "Level": "easy"}, {"user_prompt": "hi"}))
    assert load_rows(path) == [
        Row(
            0, [{"role": "system", "content": "Use tools."}, user("3 * 4?")], "12", {"a": 1, "Level": "easy"}
        ),
        Row(1, [user("hi")], None, None),
    ]


def test_a_csv_record_becomes_a_row(write):
    csv = 'User_Prompt,LABEL,metadata,level\r\n"a, ""b""\nc",012,"{""x"": [1]}",3\r\n\r\n plain ,,,\r\n'
    assert load_rows(write(csv, "train.CSV")) == [
        Row(0, [user('a, "b"\nc')], "012", {"x": [1], "level": "3"}),
        Row(1, [user(" plain ")], None, {"level": ""}),
    ]


def test_columns_match_in_any_letter_case_and_null_is_absent(write):
    path = write(jsonl({"USER_PROMPT": "q", "Label": "x", "System_Prompt": None, "metadata": None}))
    assert load_rows(path) == [Row(0, [user("q")], "x", None)]


@pytest.mark.parametrize(
    ("given", "label"), [(12, "12"), (1.5, "1.5"), (0, "0"), ("", ""), (2**70, str(2**70))]
)
def test_a_number_as_label_becomes_its_text(write, given, label):
    assert load_rows(write(jsonl({"user_prompt": "q", "ground_truth": given})))[0].label == label


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_are_fine(write):
    path = write(b'\xef\xbb\xbf\n{"user_prompt": "a"}\r\n  \r\n\n{"user_prompt": "\xe6\x97\xa5"}')
    assert [(row.index, row.prompt[0]["content"]) for row in load_rows(path)] == [(0, "a"), (1, "日")]


def test_limit_and_offset_take_a_window_that_alone_is_checked(write):
    path = write("broken\n\n" + jsonl(*({"user_prompt": f"q{i}"} for i in range(1, 5))) + "broken\n")
    assert [row.index for row in load_rows(path, offset=1, limit=2)] == [1, 2]
    assert [row.prompt[0]["content"] for row in load_rows(path, offset=3, limit=2)] == ["q3", "q4"]
    assert findings(path, offset=6) == [" has 6 rows, so none is left after offset 6"]
    assert findings(path, limit=0) == ["limit must be at least 1 and offset at least 0, got 0 and 0"]


def test_a_csv_field_may_be_long(write):
    assert len(load_rows(write("user_prompt\n" + "x" * 300_000, "a.csv"))[0].prompt[0]["content"]) == 300_000


def test_the_fingerprint_is_the_sha256_of_the_file(write):
    path = write(jsonl({"user_prompt": "a"}))
    assert dataset_fingerprint(path) == hashlib.sha256(b'{"user_prompt": "a"}\n').hexdigest()


def test_json_and_parquet_give_the_rows_that_jsonl_gives(write, tmp_path):
    items = [
        {"user_prompt": "a", "ground_truth": 12, "metadata": {"k": [1]}, "level": "easy"},
        {"user_prompt": "b", "ground_truth": 13, "metadata": {"k": [2, 3]}, "level": "hard"},
    ]
    rows = load_rows(write(jsonl(*items)))
    assert rows[1] == Row(1, [user("b")], "13", {"k": [2, 3], "level": "hard"})
    assert load_rows(write(json.dumps(items), "a.json")) == rows
    parquet.write_table(pyarrow.Table.from_pylist(items), tmp_path / "a.parquet")
    assert load_rows(tmp_path / "a.parquet") == rows


def test_metadata_may_be_json_text_in_any_format(write):
    path = write(jsonl({"user_prompt": "a", "metadata": '{"k": 1}'}))
    assert load_rows(path)[0].metadata == {"k": 1}


# --- selection


def numbered(write, count):
    return write(jsonl(*({"user_prompt": f"q{i}"} for i in range(count))))


@pytest.mark.parametrize(
    ("selection", "indices"),
    [
        (Selection(rows="7,3, 4-5,4"), [3, 4, 5, 7]),
        (Selection(offset=2, limit=3), [2, 3, 4]),
        (Selection(sample=99), list(range(12))),
        (Selection(sample=3, seed=1), sorted(random.Random(1).sample(range(12), 3))),
        (Selection(offset=2, limit=8, sample=8), list(range(2, 10))),
    ],
)
def test_a_selection_names_rows_by_their_place_in_the_file(write, selection, indices):
    dataset = open_dataset(numbered(write, 12), selection)
    assert len(dataset) == len(indices)
    assert [(row.index, row.prompt[0]["content"]) for row in dataset] == [(i, f"q{i}") for i in indices]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": "1,x"}, "rows '1,x': 'x' is not a row or a range; write 3,7,10-20"),
        ({"rows": "5-3"}, "rows '5-3': the range '5-3' runs backwards"),
        ({"rows": "2-12"}, "/train.jsonl has the rows 0 to 11; there is no row 12"),
        ({"rows": "1", "limit": 2}, "rows names the rows one by one: leave out limit, offset and sample"),
        ({"sample": 0}, "sample must be at least 1, got 0"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(write, tmp_path, given, message):
    with pytest.raises(DatasetError) as caught:
        open_dataset(numbered(write, 12), Selection(**given))
    assert str(caught.value).removeprefix(str(tmp_path)) == message


def test_a_large_file_is_streamed(write):
    path = write("".join(f'{{"user_prompt": "{i} {"x" * 1000}"}}\n' for i in range(20_000)))  # 20 MB
    tracemalloc.start()
    try:
        assert sum(row.index for row in open_dataset(path)) == sum(range(20_000))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_file_that_shrinks_during_a_run_is_noticed(write):
    path = numbered(write, 4)
    dataset = open_dataset(path)
    numbered(write, 1)
    with pytest.raises(DatasetError, match="has lost rows since the run began: row 1 is not there"):
        list(dataset)


# --- bad files


def test_parquet_values_that_json_cannot_hold_are_named(tmp_path):
    items = [{"user_prompt": "a", "when": datetime(2026, 1, 2), "x": float("nan")}]
    parquet.write_table(pyarrow.Table.from_pylist(items), tmp_path / "a.parquet")
    assert findings(tmp_path / "a.parquet") == [
        ":1: column 'when' holds what JSON cannot (datetime); convert it to text or a number",
        ":1: column 'x' holds what JSON cannot (nan); convert it to text or a number",
    ]


def test_everything_wrong_is_said_at_once_with_file_and_line(write):
    path = write(
        b'{"user_prompt": "fine"}\n'
        b'{"user_prompt": 3, "ground_truth": [1], "metadata": "x"}\n'
        b"\n"
        b'{"user_prompt": "a"\n'
        b'{"user_prompt": "caf\xe9"}\n'
        b'["user_prompt"]\n'
        b'{"prompt": "q"}\n'
        b'{"user_prompt": " ", "ground_truth": 1, "label": 1}\n'
        b'{"user_prompt": "q", "label": true, "system_prompt": {}}\n'
        b'{"user_prompt": "q", "Label": "a", "label": "b"}\n'
        b'{"user_prompt": "q", "x": 1, "metadata": {"x": 2}}\n'
        b'{"user_prompt": "q", "label": NaN}\n'
        b'{"user_prompt": null}\n'
    )
    assert findings(path) == [
        ":2: metadata must be a JSON object: Expecting value: line 1 column 1 (char 0)",
        ":2: user_prompt must be a string, got the number 3",
        ":2: ground_truth must be a string or a number, got a list",
        ":4: not JSON: Expecting ',' delimiter at column 20",
        ":5: not UTF-8: byte 0xe9 at byte 21 of the line",
        ':6: a row must be a JSON object, got ["user_prompt"]',
        ":7: no user_prompt; the row has prompt. Rename 'prompt' to 'user_prompt'.",
        ":8: user_prompt is empty",
        ":8: both ground_truth and label are given; they mean the same, keep one",
        ":9: system_prompt must be a string, got an object",
        ":9: label must be a string or a number, got a boolean true",
        ":10: column 'label' is there twice, in different letter case",
        ":11: 'x' is a column and also a key of metadata; rename one",
        ":12: not JSON: NaN is not a JSON number",
        ":13: user_prompt must be a string, got null",
    ]


def test_half_of_a_surrogate_pair_is_found_where_a_file_is_looked_at_and_a_run_takes_it(write):
    half = "\ud83d"
    rows = [
        {"user_prompt": "😀"},
        {"user_prompt": half, "é": [{half: 1}]},
        {"user_prompt": 5, "label": "\udfff"},
    ]
    path = write(jsonl(*rows))
    with pytest.raises(DatasetError) as caught:
        open_dataset(path, strict=True)
    found = [line.removeprefix(str(path)) for line in str(caught.value).splitlines()]
    why = (
        "it is no character, so the row cannot be sent. Write both halves (\\ud83d\\ude00 is one character), "
    )
    assert found == [
        f":2: user_prompt has half of a surrogate pair, \\ud83d: {why}or take it out",
        f":2: é has half of a surrogate pair, \\ud83d: {why}or take it out",
        ":3: user_prompt must be a string, got the number 5",
        f":3: label has half of a surrogate pair, \\udfff: {why}or take it out",
    ]
    assert [row.prompt[0]["content"] for row in load_rows(path, limit=2)] == ["😀", half]
    in_csv = write('user_prompt,metadata\nq,"{""a"": ""\\ud83d""}"\n', "a.csv")
    with pytest.raises(DatasetError, match=r"a\.csv:2: metadata has half of a surrogate pair"):
        open_dataset(in_csv, strict=True)


def test_after_twenty_findings_the_rest_is_counted(write):
    found = findings(write("x\n" * 33))
    assert len(found) == 21
    assert found[19:] == [":20: not JSON: Expecting value at column 1", "... and 13 more"]


def test_bad_csv_is_named_by_the_line_it_starts_on(write):
    path = write('user_prompt,metadata\n"two\nlines",\nq\nq,"[1]"\nq,{\n"open', "a.csv")
    assert findings(path) == [
        ":4: 1 fields, but the header has 2",
        ":5: metadata must be an object, got a list",
        ":6: metadata must be a JSON object: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
        ":7: not CSV: unexpected end of data",
    ]


def test_a_csv_header_is_checked_once(write):
    assert findings(write("prompt,answer\na,b\n", "a.csv")) == [
        ":1: no column 'user_prompt'; the columns are prompt, answer. Did you mean 'prompt'?"
    ]
    assert findings(write("user_prompt,User_Prompt\na,b\n", "a.csv")) == [
        ":1: column 'user_prompt' is there twice; rename one"
    ]
    assert findings(write(b"user_prompt\nok\n\xff\n", "a.csv")) == [
        ":3: not UTF-8: byte 0xff at byte 1 of the line"
    ]


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", ""), ("a.jsonl", "\n \n"), ("a.csv", "user_prompt\n"), ("a.csv", "")]
)
def test_a_dataset_without_rows_says_so(write, name, content):
    assert findings(write(content, name)) == [" has no rows; write at least one with a user_prompt"]


def test_a_missing_file_suggests_the_nearest(write, tmp_path):
    write("", "train.jsonl")
    write("", "test.csv")
    (message,) = findings(tmp_path / "trian.jsonl")
    assert message == f"no dataset {tmp_path}/trian.jsonl. Did you mean train.jsonl?"
    (message,) = findings(tmp_path / "zzz.csv")
    assert message.endswith(f"The folder {tmp_path} has test.csv, train.jsonl.")
    (message,) = findings(tmp_path / "no" / "train.jsonl")
    assert message.endswith(f"There is no folder {tmp_path}/no either.")


def test_other_formats_and_folders_are_refused(write, tmp_path):
    for name, suffix in (("a.txt", ".txt"), ("a", "a name without suffix")):
        assert findings(write("", name)) == [
            ": datasets are .jsonl (one JSON object per line), .csv (with a header line), .parquet and .json "
            f"(an array of objects); {suffix} is not read"
        ]
    assert findings(write("[", "a.json"))[0].startswith(": not JSON: Expecting value")
    assert findings(write("{}", "a.json")) == [": a .json dataset is an array of objects, got {}"]
    assert findings(write("PAR1", "a.parquet"))[0].startswith(": not Parquet that can be read: ")
    (tmp_path / "folder.jsonl").mkdir()
    (message,) = findings(tmp_path / "folder.jsonl")
    assert message.endswith("folder.jsonl: Is a directory")
