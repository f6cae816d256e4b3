# ruff: noqa: E501  templates are not prose
"""Tokenizer and template families of real models, built on the spot: the shapes, not the weights.

qwen     byte-level BPE, words and single digits, NFC; ChatML, tools in the system message, results of
         parallel calls in one user message, reasoning before the last question dropped
llama    byte-level BPE, digits in threes; headers, contents trimmed, a bos token, results as "ipython"
mistral  SentencePiece-like BPE with "▁" and byte fallback; [INST], tools before the last user message
gemma    Unigram with "▁" before every part of the text; roles "user" and "model"
bert     WordPiece: lower case, white space lost, "##": nothing that is decoded reads back
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "What is 37 times 4? The answer is 148, and 1,234.50 is more.",
    'Tools: {"name": "add", "arguments": {"a": 1, "b": true, "c": null, "d": "x y"}}',
    "<think>Let me see. Step 1: add. Step 2: check.</think>\n\nIt's done, isn't it?  Trailing  \n",
    "Grüße aus Köln, 北京 и Москва. Café naïve 😀👩‍👩‍👧 done.",
    "<parameter=query>\nselect * from t where a < 3 && b > 4\n</parameter>",
] * 30

QWEN_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_WORDS = QWEN_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)

QWEN_TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if ns.last < 0 and message.role == 'user' %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content and loop.index0 < ns.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA_TEMPLATE = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}{%- set rest = messages[1:] %}
{%- else %}{%- set system = '' %}{%- set rest = messages %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n\\n' + system + '<|eot_id|>' }}
{%- for message in rest %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
    {%- elif message.tool_calls %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + message.content | trim }}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "parameters": ' + call.function.arguments | tojson + '}' }}
        {%- endfor %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {%- if loop.first and tools %}{{- 'Given these functions:\\n' + tools | tojson(indent=4) + '\\n\\n' }}{%- endif %}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL_TEMPLATE = """
{{- bos_token }}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.index0 == ns.last %}
            {{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'system' %}{{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- ' ' + message.content }}
        {%- for call in message.tool_calls %}{{- '[TOOL_CALLS] ' + call.function | tojson }}{%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

GEMMA_TEMPLATE = """
{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'model' if message.role == 'assistant' else 'user' %}
    {{- '<start_of_turn>' + role + '\\n' + (message.content | trim) }}
    {%- for call in message.tool_calls or [] %}{{- '```tool\\n' + call.function | tojson + '\\n```' }}{%- endfor %}
    {{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

BERT_TEMPLATE = """
{{- '[CLS]' }}
{%- for message in messages %}
    {{- message.role + ' : ' + message.content }}
    {%- for call in message.tool_calls or [] %}{{- ' call ' + call.function | tojson }}{%- endfor %}
    {{- '[SEP]' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant :' }}{%- endif %}
"""


def _byte_level(words: str, *, nfc: bool) -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.BPE(ignore_merges=not nfc))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return tokenizer, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)


def _sentencepiece_bpe() -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return tokenizer, trainers.BpeTrainer(vocab_size=700, special_tokens=pieces, show_progress=False)


def _unigram() -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )


def _wordpiece() -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"], show_progress=False)


# name -> tokenizer and trainer, template, special tokens (the first ends an answer), other added tokens
FAMILIES: dict[str, tuple[Any, str, list[str], list[AddedToken]]] = {
    "qwen": (
        lambda: _byte_level(QWEN_WORDS, nfc=True),
        QWEN_TEMPLATE,
        ["<|im_end|>", "<|endoftext|>", "<|im_start|>"],
        [AddedToken(t, normalized=False) for t in ("<tool_call>", "</tool_call>", "<think>", "</think>")],
    ),
    "llama": (
        lambda: _byte_level(LLAMA_WORDS, nfc=False),
        LLAMA_TEMPLATE,
        ["<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"],
        [],
    ),
    "mistral": (
        _sentencepiece_bpe,
        MISTRAL_TEMPLATE,
        ["</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"],
        [AddedToken("[AVAILABLE_TOOLS]"), AddedToken("[/AVAILABLE_TOOLS]")],  # normalized
    ),
    "gemma": (
        _unigram,
        GEMMA_TEMPLATE,
        ["<end_of_turn>", "<bos>", "<start_of_turn>"],
        [AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)],
    ),
    "bert": (_wordpiece, BERT_TEMPLATE, ["[SEP]", "[CLS]"], [AddedToken("[MASK]", lstrip=True)]),
}


def make_family(folder: Path, name: str) -> Path:
    """A folder with the tokenizer and the template of a family."""
    from transformers import PreTrainedTokenizerFast

    build, template, specials, others = FAMILIES[name]
    tokenizer, trainer = build()
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    tokenizer.add_tokens(others)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=specials[0],
        bos_token=specials[1],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder
