"""A starting policy from nothing: an ordinary Hugging Face folder with random weights.

It holds a small Qwen3-style model, a byte-level tokenizer trained on the texts of the task, and an
append-only chat template with tool calls. Everything loads offline through the Auto classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.engine.folder import no_progress_bars
from osmosis_ai.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    Messages = Sequence[Mapping[str, Any]]
    Tools = Sequence[Mapping[str, Any]]

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
# Single tokens, but not "special": calls are read from text, so they survive a decode that skips those.
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
NUM_BYTES = 256


def chat_template() -> str:
    """The append-only chat template that `new_policy` puts into the folder (Jinja)."""
    return resources.files("osmosis_ai.engine").joinpath("chat_template.jinja").read_text(encoding="utf-8")


def conversation_texts(conversations: Iterable[tuple[Messages, Tools]]) -> Iterator[str]:
    """Render each (messages, tools) with the chat template: what the tokenizer of a new policy is trained on.

    conversation_texts([([{"role": "user", "content": "2 times 3?"}], [])])
    yields "<|im_start|>user\\n2 times 3?<|im_end|>\\n"
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    template = chat_template()
    for messages, tools in conversations:
        rendered, _ = render_jinja_template(
            conversations=[list(messages)], tools=list(tools) or None, chat_template=template
        )
        yield rendered[0]


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Byte-level BPE over `texts` with at most `vocab_size` tokens; the same texts give the same tokenizer.

    Text is split at digits, line ends and special tokens only, not at words, so boilerplate becomes a few
    long tokens while every number stays one token a digit:

    "What is 37 times 4?"  ->  "What is ", "3", "7", " times ", "4", "?"
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    pieces = [
        pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated"),
        # A line at a time: no token may reach from "assistant\n", which is prompt, into what is sampled.
        pre_tokenizers.Split(Regex(r"\n"), behavior="merged_with_previous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    # A trained tokenizer cuts markup out as added tokens; while it is being trained, this does.
    markup = "|".join(re.escape(token) for token in (*SPECIAL_TOKENS, *MARKUP_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(markup), behavior="removed"), *pieces]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP_TOKENS])
    return tokenizer


def new_policy(
    path: str | Path,
    *,
    texts: Iterable[str],
    hidden_size: int = 64,
    layers: int = 3,
    vocab_size: int = 768,
    seed: int = 0,
    max_context: int = 1024,
    heads: int = 4,
    init_std: float = 0.08,
) -> Path:
    """Write a policy with random weights into the folder `path`, and return it.

    `vocab_size` is an upper bound in tokens (texts with little variety need fewer); `max_context` counts
    prompt and completion tokens together. The same arguments give the same bytes of weights.
    """
    import torch

    _check(
        hidden_size=hidden_size, layers=layers, vocab_size=vocab_size, max_context=max_context, heads=heads
    )
    folder = Path(path)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty; a new policy needs a folder of its own. Name another, or remove it."
        )
    tokenizer = _tokenizer(texts, vocab_size, max_context)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _model(
            tokenizer,
            hidden_size=hidden_size,
            intermediate_size=3 * hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=hidden_size // heads,
            max_position_embeddings=max_context,
            initializer_range=init_std,
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    with no_progress_bars():
        model.save_pretrained(folder)
    return folder


def _tokenizer(texts: Iterable[str], vocab_size: int, max_context: int) -> Any:
    """Trained on the texts, with our chat template."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(texts, vocab_size=vocab_size),
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        model_max_length=max_context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def _model(tokenizer: Any, **shape: Any) -> Any:
    """Random weights, from torch's current random state."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    eos_id, pad_id = (tokenizer.convert_tokens_to_ids(token) for token in (TURN_END, END_OF_TEXT))
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        dtype="float32",
        **shape,
    )
    model = Qwen3ForCausalLM(config)
    # Not 1.0: then transformers builds no temperature processor and a request's own temperature fails.
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.99, top_k=0, top_p=1.0, eos_token_id=eos_id, pad_token_id=pad_id
    )
    return model


def _check(*, hidden_size: int, layers: int, vocab_size: int, max_context: int, heads: int) -> None:
    sizes = {"hidden_size": hidden_size, "layers": layers, "max_context": max_context, "heads": heads}
    for name, value in sizes.items():
        if value < 1:
            raise UsageError(f"{name} of a new policy must be at least 1, got {value}.")
    if hidden_size % (2 * heads):
        raise UsageError(
            f"hidden_size must be a multiple of twice the heads (rotary positions need an even head size), "
            f"got hidden_size {hidden_size} with {heads} heads. Try hidden_size = {2 * heads * 8}."
        )
    fewest = NUM_BYTES + len(SPECIAL_TOKENS) + len(MARKUP_TOKENS)
    if vocab_size < fewest:
        raise UsageError(
            f"vocab_size must be at least {fewest} ({NUM_BYTES} bytes and the markup), got {vocab_size}."
        )
