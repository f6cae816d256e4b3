"""Exactness, whatever agents and policies do, over six tokenizer and template families.

A rollout is played through the whole gateway, without sockets. The policy samples nasty tokens, the agent
does nasty things with them. Then the training samples are compared with what the engine itself has logged,
and every prompt with a slow reference that knows no cache.
"""

import asyncio
import copy
import json
import random
from dataclasses import dataclass, field

import pytest
from gateway_families import FAMILIES, make_family
from gateway_parts import ADD, MemoryStore, info, make_tokenizer_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from osmosis_ai.engine.base import Completion
from osmosis_ai.engine.policy import chat_template
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.render import PieceEncoder, TemplateRenderer
from osmosis_ai.gateway.targets import PolicyTarget
from osmosis_ai.lean_server import Request
from osmosis_ai.train.samples import training_samples
from osmosis_ai.types import Rollout

NAMES = ["demo", *FAMILIES]
SEEDS = range(12)
CALL = '<tool_call>{"name": "add", "arguments": %s}</tool_call>'
ARGUMENTS = [
    '{"a": true, "b": 1.0, "c": null, "d": [1e3, -0.0]}',
    '{"b":2,"a":  1}',
    '{"big": 123456789012345678901234567890, "tiny": 1e-320}',
    '{"query": "<a href=\\"x\\">&amp;</a> <parameter=b>\\n</parameter>", "s": " x "}',
    '{"text": "Grüße 北京 😀 \\u00e9 \\ud83d\\ude00"}',
    "{}",
]
TEXTS = [
    "", " ", "\n\n", "The answer is 148.", "trailing  ", "trailing\n", "  leading", "Grüße 😀👩‍👩‍👧 北京",
    "e\u0301", "a < b && <b>c</b>", "1,234.50", "it's", "<tool_call>", "<tool_call>add 1 2</tool_call>",
    "\u2581x\u2581",
]  # fmt: skip
MALFORMED = '<tool_call>{"name": "add", "arguments": {"a": 1,}}</tool_call>'
REASONING = "<think>hm, 2 + 3</think>\n\nDone."


@pytest.fixture(scope="session")
def policies(tmp_path_factory):
    """name -> (folder, renderer), made when first asked for."""
    made = {}

    def policy(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            demo = name == "demo"
            make_tokenizer_folder(folder, chat_template()) if demo else make_family(folder, name)
            made[name] = folder, TemplateRenderer(folder)
        return made[name]

    return policy


@dataclass
class NastyEngine:
    """Samples what a policy could: texts cut into unusual tokens, any tokens at all, ends or none."""

    renderer: TemplateRenderer
    chance: random.Random
    texts: list[str]
    any_tokens: bool = False
    log: list[tuple[tuple[int, ...], Completion]] = field(default_factory=list)

    async def sample(self, prompt_ids, sampling, on_token=None):
        ids = self._cut_somehow(self.chance.choice(self.texts))
        if self.any_tokens and self.chance.random() < 0.3:
            ends = set(self.renderer.end_ids)
            ids = [t for t in (self.chance.randrange(250) for _ in range(6)) if t not in ends]
        whole = [*ids, self.renderer.end_ids[0]]
        cut = self.chance.random() < 0.15
        sampled = whole[: max(1, len(whole) // 2)] if cut else whole
        logprobs = [-self.chance.randrange(1, 1000) / 1024 for _ in sampled]
        reason = "stop" if sampled[-1] == whole[-1] else "length"
        completion = Completion(sampled, logprobs, reason, version=len(self.log) % 3)
        self.log.append((tuple(prompt_ids), completion))
        return completion

    def _cut_somehow(self, text):
        """Tokens of the text, but not those that the tokenizer would take."""
        places = sorted(self.chance.sample(range(len(text) + 1), min(len(text), self.chance.randrange(4))))
        pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        return [token_id for piece in pieces for token_id in self.renderer.encode(piece)]


class Client:
    """Stands in for a connection."""

    gone = False

    def __init__(self):
        self.answered = asyncio.get_running_loop().create_future()

    def answer(self, status, body, headers=b""):
        self.answered.set_result((status, body))


class Play:
    """One rollout: an agent that calls the gateway, and what came of it."""

    def __init__(self, policy, seed, *, texts, tools=True, any_tokens=False):
        self.folder, self.renderer = policy
        self.chance = random.Random(seed)
        self.engine = NastyEngine(self.renderer, self.chance, texts, any_tokens)
        self.gateway = Gateway(
            PolicyTarget(self.engine, info(10**6, self.renderer.end_ids), self.renderer), MemoryStore()
        )
        self.key = self.gateway.admit("r1", seed=seed)
        self.tools = [ADD] if tools else []

    async def ask(self, messages, sample="main", **headers):
        """A call to the gateway, without the network; the assistant message."""
        body = {"model": "osmosis-rollout", "messages": messages, "tools": self.tools}
        named = {"authorization": f"Bearer {self.key}", "x-sample-id": sample, **headers}
        request = Request(
            "POST",
            b"/v1/chat/completions",
            {name.encode(): value.encode() for name, value in named.items()},
            keep_alive=True,
            chunked=True,
            body=json.dumps(body).encode(),
        )
        client = Client()
        self.gateway.handle(request, client)
        status, answer = await client.answered
        assert status == 200, answer
        return json.loads(answer)["choices"][0]["message"]

    def respelled(self, message):
        """As some framework might send it back; not an edit."""
        sent = copy.deepcopy(message)
        content = sent["content"] or ""
        cut = self.chance.randrange(len(content) + 1)
        spellings = [content or None, [{"type": "text", "text": t} for t in (content[:cut], content[cut:])]]
        sent["content"] = self.chance.choice([content, *spellings])
        for call in sent.get("tool_calls", []):
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:
                continue
            styles = [
                {},
                {"sort_keys": True},
                {"separators": (",", ":")},
                {"indent": 1, "ensure_ascii": False},
            ]
            call["function"]["arguments"] = json.dumps(arguments, **self.chance.choice(styles))
        return sent

    def replies(self, message):
        """Results for all calls, or the user's next words."""
        calls = message.get("tool_calls") or []
        words = self.chance.choice([*TEXTS, "And now?"])
        if not calls:
            return [{"role": "user", "content": words}]
        return [{"role": "tool", "tool_call_id": call["id"], "content": words} for call in calls]

    async def rollout(self):
        turns = await self.gateway.seal("r1")
        return Rollout("r1", "run", 0, "g", 0, turns=turns)

    async def checked(self):
        """The rollout and its training samples, after all that holds for any agent has been checked."""
        rollout = await self.rollout()
        rows = training_samples(rollout, {turn.sample_id: 1.0 for turn in rollout.turns})
        assert_trained_once_as_sampled(rows, self.engine.log)
        Reference(self.folder, self.renderer).check(rollout.turns)
        return rollout, rows


def assert_trained_once_as_sampled(rows, log):
    """Every span that is trained was sampled behind just these tokens; everything sampled is trained once."""
    spans = []
    for row in rows:
        starts = [i for i, m in enumerate(row.loss_mask) if m and (i == 0 or not row.loss_mask[i - 1])]
        for start in starts:
            # Two answers never touch: at least a header lies between them.
            end = next(
                (i for i in range(start, len(row.loss_mask)) if not row.loss_mask[i]), len(row.loss_mask)
            )
            prompt, span = tuple(row.token_ids[:start]), slice(start, end)
            spans.append((prompt, row.token_ids[span], row.logprobs[span], set(row.versions[span])))
    expected = [(prompt, c.token_ids, c.logprobs, {c.version}) for prompt, c in log]
    assert sorted(spans, key=repr) == sorted(expected, key=repr)


class Reference:
    """The rule of `tree.py`, slowly: transformers renders, the bare tokenizer cuts, nothing is remembered."""

    def __init__(self, folder, renderer):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.end_ids = renderer.end_ids
        self.ends = {self.tokenizer.decode([end_id]): end_id for end_id in renderer.end_ids}

    def text(self, messages, tools, reply):
        shown = copy.deepcopy(messages)
        for message in shown:
            for call in message.get("tool_calls", []):
                try:
                    arguments = json.loads(call["function"]["arguments"], parse_constant=lambda _: 1 / 0)
                except (ValueError, ZeroDivisionError):
                    continue
                if isinstance(arguments, dict):
                    call["function"]["arguments"] = arguments
        options = {"tools": tools or None, "add_generation_prompt": reply, "tokenize": False}
        return self.tokenizer.apply_chat_template(shown, **options)

    def ids(self, text):
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def check(self, turns):
        for turn in turns:
            whole = self.text(turn.messages, turn.tools, True)
            if turn.parent is None:
                assert turn.prompt_ids == self.ids(whole)
                continue
            parent = turns[turn.parent]
            count = len(parent.messages) + 1
            assert turn.messages[:count] == [*parent.messages, parent.response]
            closed = self.text(turn.messages[:count], turn.tools, False)
            assert whole.startswith(closed)
            end = max(self.ends, key=closed.rfind)
            new = self.ids(end + closed[closed.rfind(end) + len(end) :] + whole[len(closed) :])
            known = parent.prompt_ids + parent.completion_ids
            if parent.completion_ids[-1] == self.ends[end]:
                new = new[1:]
            assert turn.prompt_ids == known + new


# --- agents that only append


def texts_without_reasoning():
    calls = [CALL % arguments for arguments in ARGUMENTS]
    return [*TEXTS, *calls, calls[0] + calls[1], "Sure. " + calls[2] + calls[4] + calls[5], MALFORMED]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("turns", [2, 8, 64])
async def test_an_agent_that_only_appends_gives_one_training_sample(policies, name, turns):
    # Mistral's template shows the tools before the last user message, so with tools it does not only append.
    play = Play(
        policies(name), turns, texts=texts_without_reasoning(), tools=name != "mistral", any_tokens=True
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}]
    for _ in range(turns):
        answer = await play.ask(messages)
        messages = [*messages, play.respelled(answer), *play.replies(answer)]
    rollout, rows = await play.checked()
    assert [turn.branch_reason for turn in rollout.turns] == [None] * turns
    assert [turn.parent for turn in rollout.turns] == [None, *range(turns - 1)]
    assert len(rows) == 1
    assert rows[0].trained_tokens == sum(len(c.token_ids) for _, c in play.engine.log)


# --- agents that do anything


def compacted(play, messages):
    return [messages[0], {"role": "user", "content": "Summary: so far so good."}, *messages[-1:]]


def edited(play, messages):
    place = play.chance.randrange(len(messages))
    changed = {**messages[place], "content": "changed " + str(messages[place]["content"])}
    return [*messages[:place], changed, *messages[place + 1 :]]


def without_reasoning(play, messages):
    return [
        {**m, "content": m["content"].split("</think>")[-1].strip()}
        if m["role"] == "assistant" and isinstance(m["content"], str)
        else m
        for m in messages
    ]


def stripped(play, messages):
    return [{**m, "content": m["content"].strip()} if isinstance(m["content"], str) else m for m in messages]


def rolled_back(play, messages):
    users = [i for i, m in enumerate(messages) if m["role"] == "user"]
    return messages[: play.chance.choice(users) + 1]


def with_empty_messages(play, messages):
    return [*messages[:-1], {"role": "user", "content": ""}, messages[-1]]


def in_reverse_order(play, messages):
    """Results of parallel calls in another order than the calls."""
    last = next(i for i in range(len(messages), -1, -1) if i == 0 or messages[i - 1]["role"] != "tool")
    return [*messages[:last], *reversed(messages[last:])]


def unchanged(play, messages):
    return messages


DEEDS = [
    unchanged, unchanged, unchanged, compacted, edited, without_reasoning, stripped, rolled_back,
    with_empty_messages, in_reverse_order,
]  # fmt: skip


async def misbehave(play, turns):
    chance = play.chance
    messages = [{"role": "user", "content": chance.choice(TEXTS)}]
    if chance.random() < 0.7:
        messages.insert(0, {"role": "system", "content": chance.choice(TEXTS)})
    for _ in range(turns):
        messages = chance.choice(DEEDS)(play, messages)
        answer = await play.ask(messages)
        if chance.random() < 0.1:  # the answer was lost, says the client
            assert await play.ask(messages, **{"x-stainless-retry-count": "1"}) == answer
        if chance.random() < 0.1:  # a sub-agent, under the same sample or its own
            own = [{"role": "user", "content": "sub-agent: " + chance.choice(TEXTS)}]
            await play.ask(own, sample=chance.choice(["main", "sub"]))
        if chance.random() < 0.1:  # two candidates at once
            await asyncio.gather(play.ask(messages), play.ask(messages))
        messages = [*messages, play.respelled(answer), *play.replies(answer)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_an_agent_does_what_was_sampled_is_trained_once_and_as_it_was(policies, name, seed):
    play = Play(policies(name), seed, texts=[*texts_without_reasoning(), REASONING], any_tokens=seed % 2 == 0)
    await misbehave(play, turns=2 + seed)
    rollout, rows = await play.checked()
    for turn in rollout.turns[1:]:  # every break has its reason
        first_of_sample = turn.ordinal == min(
            t.ordinal for t in rollout.turns if t.sample_id == turn.sample_id
        )
        assert turn.parent is not None or turn.branch_reason is not None or first_of_sample
    assert len(rows) == len({t.ordinal for t in rollout.turns} - {t.parent for t in rollout.turns})


async def test_a_template_that_drops_reasoning_breaks_once_a_question_and_trains_everything(policies):
    play = Play(policies("qwen"), 3, texts=[REASONING], tools=False)
    messages = [{"role": "user", "content": "go"}]
    for _ in range(6):
        answer = await play.ask(messages)
        messages = [*messages, answer, {"role": "user", "content": "on"}]
    rollout, rows = await play.checked()
    whole = [turn for turn in rollout.turns[:-1] if "</think>" in turn.response["content"]]
    broken = [turn for turn in rollout.turns if turn.branch_reason == "template_not_append_only"]
    assert len(broken) == len(whole) > 2
    assert len(rows) == 1 + len(broken)


async def test_a_template_that_moves_the_tools_breaks_at_each_question_and_not_at_results(policies):
    play = Play(policies("mistral"), 0, texts=[CALL % "{}", "done"])
    messages = [{"role": "user", "content": "go"}]
    for _ in range(12):
        answer = await play.ask(messages)
        messages = [*messages, answer, *play.replies(answer)]
    rollout, _ = await play.checked()
    asked = [turn.messages[-1]["role"] == "user" for turn in rollout.turns]
    broken = [turn.branch_reason == "template_not_append_only" for turn in rollout.turns]
    assert broken[1:] == asked[1:]
    assert 0 < sum(broken) < 11


# --- what is remembered is what would have been computed


PIECES = st.sampled_from(
    [
        *TEXTS, "<|im_end|>", "<|im_start|>", "<|im_", "start|>", "<tool_call>", "</tool_call>", "<|eot_id|>",
        "</s>", "<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "<end_of_turn>", "<bos>", "<mask>",
        " <mask> ", "[SEP]", "[MASK]", " [MASK]", "[CLS]", "user\n", "\n", " ", "  ", "a", "A", "é", "\u00a0",
    ]
) | st.text(max_size=6)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tokens_from_pieces_are_those_of_the_whole_text(policies, name, data):
    _, renderer = policies(name)
    tokenizer = renderer._tokens
    encoder = PieceEncoder(tokenizer, max_kept_chars=60)  # so small that pieces are forgotten too
    for _ in range(3):
        text = "".join(data.draw(st.lists(PIECES, max_size=12)))
        text = text.encode("utf-8", "replace").decode()
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert encoder.encode(text) == expected
        assert renderer.encode(text) == expected  # keeps what it has seen in earlier examples


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_prompts_that_are_remembered_are_those_of_apply_chat_template(policies, name, data):
    folder, renderer = policies(name)
    reference = Reference(folder, renderer)
    text = st.sampled_from([*TEXTS, "<think>x</think>y"]) | st.text(
        st.characters(exclude_categories=["Cs"]), max_size=5
    )
    call = st.sampled_from([*ARGUMENTS, '{"a": 1}', '{"a": 1.0}', '{"a": true}', "not json"])
    messages = [{"role": "user", "content": data.draw(text)}]
    for _ in range(data.draw(st.integers(0, 3))):
        message = {"role": "assistant", "content": data.draw(text)}
        if data.draw(st.booleans()):
            function = {"name": "add", "arguments": data.draw(call)}
            message["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
            messages += [message, {"role": "tool", "tool_call_id": "c", "content": data.draw(text)}]
        else:
            messages += [message, {"role": "user", "content": data.draw(text)}]
    tools = data.draw(st.sampled_from([[], [ADD]]))
    whole = reference.text(messages, tools, True)
    assert renderer.render(messages, tools, reply=True) == whole
    assert renderer.render(messages, tools, reply=False) == reference.text(messages, tools, False)
    for _ in range(2):  # the second is remembered
        assert renderer.prompt(messages, tools) == (whole, reference.ids(whole))
