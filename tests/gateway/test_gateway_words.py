"""Tokens of ASCII text, word by word, beside those of the tokenizer itself."""

import random

import pytest
from gateway_families import LLAMA_WORDS, QWEN_WORDS, TEXTS
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from osmosis_ai.gateway.words import in_ascii, word_encoder

O200K_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ASCII = st.text(st.characters(max_codepoint=127)) | st.text(st.sampled_from("aZ 's.,7\n\t\r_/\x0b\x1c"))


def trained(pre_tokenizer, *, normalizer=None, model=None):
    tokenizer = Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def split(pattern):
    steps = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(steps)


TOKENIZERS = {
    "gpt2": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "qwen": trained(split(QWEN_WORDS), normalizer=normalizers.NFC()),
    "llama": trained(split(LLAMA_WORDS)),
    "o200k": trained(split(O200K_WORDS)),
}

ENCODERS = {name: word_encoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=300, deadline=None)
@given(text=ASCII)
def test_the_tokens_are_those_of_the_tokenizer(name, text):
    tokenizer = TOKENIZERS[name]
    assert ENCODERS[name].encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_same_in_long_texts_whose_words_come_again(name):
    tokenizer, chance = TOKENIZERS[name], random.Random(0)
    for _ in range(20):
        text = " ".join(chance.choice([*"aB7.'\n\t", "it's", "WE'LL", "x" * 9, "  "]) for _ in range(400))
        assert ENCODERS[name].encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "tokenizer",
    [
        trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        trained(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.Lowercase()),
        trained(pre_tokenizers.ByteLevel(add_prefix_space=False), model=models.BPE(dropout=0.1)),
        trained(split(r"\p{Greek}+|\s+")),
        trained(pre_tokenizers.Whitespace()),
    ],
    ids=["prefix space", "lower case", "dropout", "unknown class", "other cuts"],
)
def test_a_tokenizer_of_another_kind_is_left_alone(tokenizer):
    assert word_encoder(tokenizer) is None


def test_a_pattern_in_ascii():
    assert in_ascii(r" ?\p{L}+|[^\s\p{N}\p{M}]{1,3}").pattern == r" ?[a-zA-Z]+|[^\s0-9]{1,3}"


@pytest.mark.parametrize(
    "pattern", [r"(a)|b", r"^a", r"a$", r"\h+", r"\P{L}", r"[a&&b]", r"[[:alpha:]]", r"\p{M}+"]
)
def test_a_pattern_that_may_mean_something_else_is_not_translated(pattern):
    assert in_ascii(pattern) is None
