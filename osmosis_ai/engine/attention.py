"""Causal attention, the same for the sampler and the trainer: each row sees itself and nothing else.

transformers' continuous batching hands over one flat batch (all requests side by side) with a paged cache.
Its own way without flash-attention is one dense mask over all requests, which costs queries x keys of
everybody. Here each request attends to its own keys with the same kernel that the trainer uses, so the cost
is the sum over requests and the two sides round alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

# Continuous batching takes a mask-free attention only when "flash" is in its name; a digit would name a
# version.
NAME = "osmosis_flash_rows"
UNSUPPORTED = ("softcap", "s_aux", "position_bias", "sliding_window")


def register() -> str:
    """Make the attention known to transformers, under the name that is returned. Safe to call twice."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, row_attention)
    return NAME


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend. Trainer: query [B, H, L, D], rows padded on the right, which causality makes invisible.

    Sampler (`cache` given): query [1, H, Q, D] with requests side by side. Two requests, one that decodes its
    10th token and one with a prompt of 3: Q = 4, cu_seq_lens_q [0, 1, 4], cu_seq_lens_k [0, 10, 13]. Returns
    [B, L, H, D] (sampler: [1, Q, H, D]).
    """
    refused = [name for name in UNSUPPORTED if kwargs.get(name) is not None]
    if refused:
        raise NotImplementedError(
            f"attention with {', '.join(refused)} is not supported by the embedded engine"
        )
    if cache is None:
        output = _attend(query, key, value, scaling)
    else:
        # Under autocast keys and values may come in another dtype than the cache keeps.
        key, value = key.to(cache.dtype), value.to(cache.dtype)
        key, value = cache.update(
            key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs
        )
        output = _attend_each(query.to(key.dtype), key, value, scaling, kwargs)
    return output.transpose(1, 2).contiguous(), None


def _attend_each(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """Attention of each request to its own keys; all tensors [1, H, sum of lengths, D].

    One call per request looks slow and is not: padding the decoding ones into one call was measured at twice
    to fifteen times the time on two CPU cores (64 requests, 150 to 400 keys), for the copies that it needs.
    """
    ends_q: list[int] = kwargs["cu_seq_lens_q"].tolist()
    ends_k: list[int] = kwargs["cu_seq_lens_k"].tolist()
    output = torch.empty_like(query)
    for i in range(len(ends_q) - 1):
        q, k = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
        output[:, :, q] = _attend(query[:, :, q], key[:, :, k], value[:, :, k], scaling)
    return output


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """Causal attention, the last query aligned with the last key."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    num_queries, num_keys = query.shape[2], key.shape[2]
    mask = None
    if 1 < num_queries < num_keys:  # a later chunk of a long prompt
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
        mask = mask.tril(diagonal=num_keys - num_queries)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, is_causal=num_queries == num_keys
    )
