"""`osmosis report`: one file, safe to open, quick to open."""

import asyncio
import json
import re
import time
from pathlib import Path

import pytest
from chromium import chromium, needs_chromium

from osmosis_ai.eval.report.charts import Bar, Chart, Curve
from osmosis_ai.eval.report.content import Content, Figure
from osmosis_ai.eval.report.page import json_block, page
from osmosis_ai.eval.report.redact import Redactor
from osmosis_ai.store.base import StepRecord

EVIL = (
    "</script><script>window.pwned = 1; alert(1)</script><img src=http://127.0.0.1:9/x onerror=alert(2)>"
    "<!--<script>\"'><svg onload=alert(3)><style>*{display:none}</style>javascript:alert(4)&lt;b&gt;"
    "{{ 7 * 7 }}"
)
REWARDS = {0: [1.0], 1: [0.0], 2: [1.0], 3: [None]}


def written(bench, run_id: str = "a", *options: str) -> Path:
    path = bench.root / "r.html"
    done = bench.run("report", run_id, "-o", str(path), *options)
    assert done.code == 0, done.err
    return path


def blocks(path: Path) -> dict[str, object]:
    found = re.findall(
        r'<script type="application/json" id="([\w-]+)">(.*?)</script>', path.read_text(), re.DOTALL
    )
    return {name: json.loads(text) for name, text in found}


def test_a_report_is_one_file_on_standard_output(bench, monkeypatch):
    bench.store("a", REWARDS)
    assert bench.run("report", "a").out.startswith("<!DOCTYPE html>")


def test_with_json_it_says_what_was_written(bench):
    bench.store("a", REWARDS)
    said = json.loads(bench.run("report", "a", "-o", "r.html", "--json").out)
    assert (said["path"], said["rollouts"], said["bytes"]) == ("r.html", 4, Path("r.html").stat().st_size)
    assert "--json needs -o FILE" in bench.run("report", "a", "--json").err


def test_it_says_the_figures_and_holds_every_conversation(bench):
    bench.store("a", REWARDS)
    path = written(bench)
    text = path.read_text()
    assert "<b>0.667</b><span>mean reward</span><small>0.094 to 0.992 (95%, exact)</small>" in text
    assert "<b>1</b><span>failed</span><small>1 grader_error</small>" in text
    assert "<figcaption>Mean reward by kind</figcaption>" in text
    data = blocks(path)
    assert data["index"]["rollouts"][3] == [3, 0, 0, "grader_error", None, 2, 4, 0.25, "3 + 3?"]
    assert data["index"]["columns"] == {"kind": {"0": "even", "1": "odd", "2": "even", "3": "odd"}}
    chunk = data["chunk-0"]
    assert (chunk["rollouts"][1]["label"], chunk["rollouts"][1]["metadata"]) == ("2", {"kind": "odd"})
    (conversation,) = chunk["rollouts"][1]["conversations"]
    assert [chunk["messages"][number] for number in conversation["messages"]] == [
        {"role": "system", "text": "Add."},
        {"role": "user", "text": "1 + 1?"},
        {"role": "assistant", "calls": [["add", '{"a": 1}']]},
        {"role": "tool", "text": "2"},
        {"role": "assistant", "text": "row 1 by a"},
    ]
    assert [answer[0] for answer in conversation["answers"]] == [4, 2], "places of the two answers"
    assert conversation["answers"][0][1:] == [0.013, 6, 2, "stop", 0]
    assert chunk["rollouts"][1]["seconds"] == [0.25, 0.025]
    assert chunk["rollouts"][3]["reason"] == "Exact.grade raised ValueError: boom"


def test_a_training_run_has_a_curve_and_a_funnel(bench):
    stages = {"generated": {"rollouts": 4}, "trained": {"rollouts": 3}}
    steps = [
        StepRecord(
            "t",
            n,
            n,
            "",
            {"reward_mean": 0.25 * n, "funnel": {"stages": stages, "losses": {"no_signal": {"rollouts": 1}}}},
        )
        for n in (1, 2, 3)
    ]
    bench.store("t", REWARDS, kind="train", steps=steps)
    text = written(bench, "t").read_text()
    assert '<polyline class="raw" points="0.0,225.0 500.0,150.0 1000.0,75.0"/>' in text
    assert "<small>lost: 3 no_signal</small>" in text


def test_a_dataset_that_is_gone_costs_the_labels_and_is_said_on_the_page(bench):
    bench.store("a", REWARDS)
    bench.dataset.unlink()
    path = written(bench)
    assert "Labels and metadata are not shown." in path.read_text()
    assert "label" not in blocks(path)["chunk-0"]["rollouts"][0]


def test_an_unknown_run_and_a_folder_that_is_not_there_are_refused(bench):
    bench.store("a", REWARDS)
    assert bench.run("report", "b").code == 2
    assert "cannot be written" in bench.run("report", "a", "-o", "no/r.html").err


# --- secrets


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("my sk-proj-abcdefghij0123456789 here", "my [redacted] here"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [redacted]"),
        ("OPENAI_API_KEY=hunter2hunter2 x", "OPENAI_API_KEY=[redacted] x"),
        ("export DB_PASSWORD='pa55word!'", "export DB_PASSWORD='[redacted]'"),
        ('{"api_key": "abcdef123"}', '{"api_key": "[redacted]"}'),
        ('{\\"access_token\\": \\"abcdef123\\"}', '{\\"access_token\\": \\"[redacted]\\"}'),
        ("postgres://me:s3cret@db/x", "postgres://me:[redacted]@db/x"),
        ("ghp_0123456789abcdefghij", "[redacted]"),
        ("xoxb-1234567890-abcdef", "[redacted]"),
        ("hf_abcdefghijklmnopqrst", "[redacted]"),
        ("AKIAABCDEFGHIJKLMNOP", "[redacted]"),
        ("AIza" + "a1" * 17, "[redacted]"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.sig-nature", "[redacted]"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nb", "a\n[redacted]\nb"),
        ("the value is correct-horse-battery", "the value is [redacted]"),
        ("max_tokens=100 and token ids [1, 2]", "max_tokens=100 and token ids [1, 2]"),
        (
            "a key: C major; task-based; https://example.com/a:b@c",
            "a key: C major; task-based; https://example.com/a:b@c",
        ),
    ],
)
def test_secrets_are_redacted_and_words_are_kept(text, redacted):
    redact = Redactor({"MY_SECRET": "correct-horse-battery", "OTHER_TOKEN": "short", "HOME": "/root/home"})
    assert redact(text) == redacted
    assert redact.count == (text != redacted)


@pytest.mark.parametrize(
    "unit",
    [
        "KEY",
        "KEY_",
        "eyJ-",
        "eyJaaaaaaaaa.",
        "bearer ",
        "-----BEGIN PRIVATE KEY ",
        "://a:",
        "secret = '",
        "sk-",
    ],
)
def test_text_that_was_made_to_be_slow_is_not(unit):
    began = time.process_time()
    Redactor({"A_TOKEN": "abcdefgh"})(unit * (200_000 // len(unit)))
    assert time.process_time() - began < 3.0


def test_secrets_are_redacted_wherever_they_stand_in_a_run(bench, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "the-value-of-it")
    bench.store(
        "a",
        REWARDS,
        answer="sk-abcdefghijklmnop1234 and the-value-of-it",
        identity={"model": "x at http://u:passw0rd@h"},
    )
    text = written(bench).read_text()
    assert all(secret not in text for secret in ("sk-abcdefgh", "the-value-of-it", "passw0rd"))
    assert "[redacted] and [redacted]" in text


def test_values_under_a_name_that_says_secret_are_redacted_and_names_of_variables_are_kept():
    value = {"api_key": "abc", "api_key_env": "HOME", "nested": [{"password": "x", "tokens": 3}]}
    assert Redactor().json(value) == {
        "api_key": "[redacted]",
        "api_key_env": "HOME",
        "nested": [{"password": "[redacted]", "tokens": 3}],
    }


# --- what a model writes is text


def test_no_character_of_markup_is_left_in_the_embedded_json():
    assert (
        json_block(["</script><!--", "\ud83d", "&"])
        == '["\\u003c/script\\u003e\\u003c!--","\ud83d","\\u0026"]'
    )
    assert json.loads(json_block([EVIL])) == [EVIL]


def hostile_page() -> bytes:
    rollout = {
        "id": EVIL,
        "reason": EVIL,
        "label": EVIL,
        "metadata": {EVIL: EVIL},
        "conversations": [
            {
                "name": EVIL,
                "reward": 1.0,
                "metrics": {EVIL: 1},
                "policyVersion": 0,
                "branch": EVIL,
                "answers": [[0, 0.5, 1, 2, EVIL, 3]],
                "messages": [0, 1],
            }
        ],
        "seconds": [0.5, 0.25],
    }
    messages = [
        {"role": EVIL, "text": EVIL, "reasoning": EVIL, "calls": [[EVIL, EVIL]]},
        {"role": "assistant", "text": "half a pair \ud83d"},
    ]
    index = {
        "kind": "eval",
        "passThreshold": 1.0,
        "chunk": 100,
        "rollouts": [[0, 0, 0, EVIL, None, 1, 1, 0.5, EVIL]],
        "columns": {EVIL: {"0": EVIL, "1": "x"}},
    }
    chunk = {"messages": messages, "rollouts": [rollout]}
    bar = Chart(EVIL, [Bar(EVIL, 50.0, EVIL, EVIL, 1.0, 2.0)], EVIL)
    curve = Curve(EVIL, [("raw", "0,0")], EVIL, EVIL, EVIL, EVIL, EVIL)
    figure = Figure(EVIL, EVIL, EVIL)
    return page(Content(EVIL, [(EVIL, EVIL)], [figure], [bar], [curve], [EVIL], index, [chunk], EVIL))


@needs_chromium
async def test_hostile_text_runs_nothing_loads_nothing_and_is_shown_as_it_is(tmp_path):
    (tmp_path / "r.html").write_bytes(hostile_page())
    async with chromium(tmp_path / "profile") as tab:
        await tab.open(tmp_path / "r.html")
        await tab.evaluate("document.querySelector('#list button').click()")
        await tab.evaluate(
            "document.getElementById('search').value = 'ALERT(2)';"
            "document.getElementById('search').dispatchEvent(new Event('input', {bubbles: true}))"
        )
        await tab.until("document.querySelectorAll('.transcript').length === 0")  # the list was made anew
        await tab.evaluate("document.querySelector('#list button').click()")
        assert await tab.evaluate("document.querySelectorAll('.message pre')[1].textContent") == EVIL
        assert await tab.evaluate("document.querySelector('.message pre.reasoning').textContent") == EVIL
        under = f"0.50 s · 1 + 2 tokens · {EVIL} · 3 malformed tool calls"
        assert await tab.evaluate("document.querySelector('.timing').textContent") == under
        assert await tab.evaluate("document.querySelectorAll('mark').length") > 0
        assert await tab.evaluate("document.querySelectorAll('img, [onload], [onerror], b > *').length") == 0
        assert await tab.evaluate("typeof window.pwned") == "undefined"
        assert await tab.evaluate("document.title.startsWith('</script>')")
        assert tab.dialogs == []
        assert tab.requests == [(tmp_path / "r.html").as_uri()]


@needs_chromium
async def test_the_policy_of_the_page_stops_script_and_connections_that_get_in_nonetheless(tmp_path):
    (tmp_path / "r.html").write_bytes(hostile_page())
    async with chromium(tmp_path / "profile") as tab:
        await tab.open(tmp_path / "r.html")
        await tab.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.pwned=1\">')"
        )
        await tab.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {text: 'window.pwned=2'}))"
        )
        blocked = "fetch('http://127.0.0.1:9/').then(() => 'sent', (e) => String(e))"
        assert "Failed to fetch" in await tab.evaluate(blocked)
        assert await tab.evaluate("typeof window.pwned") == "undefined"


@needs_chromium
async def test_filters_and_search_find_rows(bench, tmp_path):
    path = await asyncio.to_thread(lambda: (bench.store("a", REWARDS), written(bench))[1])
    async with chromium(tmp_path / "profile") as tab:
        await tab.open(path, width=390, height=800)

        async def finds(found: str, element: str, value: str) -> None:
            await tab.evaluate(
                f"document.querySelector({json.dumps(element)}).value = {json.dumps(value)};"
                f"document.querySelector({json.dumps(element)})"
                ".dispatchEvent(new Event('input', {bubbles: true}))"
            )
            await tab.until(f"document.getElementById('found').textContent === '{found}'")

        await finds("1 of 4 rollouts", "#search", "row 2 by")
        await finds("4 rollouts", "#search", "")
        await finds("1 of 4 rollouts", "#outcome", "failed")
        await finds("2 of 4 rollouts", "#outcome", "passed")
        await finds("0 of 4 rollouts", "[aria-label=kind]", "odd")
        await finds("2 of 4 rollouts", "#outcome", "")
        await finds("1 of 4 rollouts", "#row", "3")
        assert await tab.evaluate("document.documentElement.scrollWidth") == 390


@needs_chromium
async def test_ten_thousand_rows_open_in_two_seconds(tmp_path):
    chunks = []
    for start in range(0, 10_000, 100):
        numbers = range(start, start + 100)
        messages = [{"role": "assistant", "text": f"answer {n} " + "of many words " * 80} for n in numbers]
        conversation = {"name": "s", "reward": 1.0, "metrics": {}, "policyVersion": None, "branch": ""}
        conversation["answers"] = [[0, 0.5, 5, 80, "stop", 0]]
        shared = {"reason": "", "seconds": [1.0, 0.5]}
        rollouts = [
            {"id": f"r{n}", **shared, "conversations": [{**conversation, "messages": [n - start]}]}
            for n in numbers
        ]
        chunks.append({"messages": messages, "rollouts": rollouts})
    listed = [[n, 0, 0, "graded", n % 2, 1, 100, 1.0, f"question {n}"] for n in range(10_000)]
    index = {"kind": "eval", "passThreshold": 1.0, "chunk": 100, "rollouts": listed, "columns": {}}
    (tmp_path / "r.html").write_bytes(page(Content("big", [], [], [], [], [], index, chunks, "")))
    async with chromium(tmp_path / "profile") as tab:
        await tab.open(tmp_path / "r.html")
        assert await tab.evaluate("Number(document.documentElement.dataset.ready)") < 2000
        assert (
            await tab.evaluate("document.querySelectorAll('#list > li').length") < 300
        )  # the rest as it is scrolled to
        await tab.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        await tab.until("document.querySelectorAll('#list > li').length > 100")
