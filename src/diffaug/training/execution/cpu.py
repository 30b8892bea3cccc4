"""Fast encoding on a CPU, where every padded token costs time: sequences are sorted by length.

If the model supports packed batches, only attention is padded, among sequences of similar length. Otherwise sequences
of similar length go through the encoder together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffaug.kernels.dropout import FastDropout
from diffaug.kernels.onednn import fast_products
from diffaug.methods.base import Encode, Method
from diffaug.models.batch import PaddedBatch
from diffaug.models.padded_groups import split_by_tokens

# Tokens that go through the encoder at a time, padding included.
_CHUNK_TOKENS = 2048


def fast_cpu_encode(method: Method, *, packed: bool) -> Encode:
    """`Method.represent` with little or no padding, faster dropout and faster products.

    Args:
        method: the method.
        packed: the model supports packed batches.
    """
    inner = encode_packed(method) if packed else encode_by_length(method.represent)

    def encode(batch: PaddedBatch) -> Tensor:
        with FastDropout(), fast_products():
            return inner(batch)

    return encode


def encode_packed(method: Method) -> Encode:
    """The same vectors and gradients from a packed batch, sorted by length."""

    def encode(batch: PaddedBatch) -> Tensor:
        order = torch.argsort(batch.lengths(), stable=True)
        packed = method.encoder.pack(batch.select(order), fill=False)
        return method.represent(packed)[torch.argsort(order)]

    return encode


def encode_by_length(represent: Encode) -> Encode:
    """The same vectors and gradients, computed in chunks of sequences of similar length."""

    def encode(batch: PaddedBatch) -> Tensor:
        if batch.attention_mask is None:
            return represent(batch)
        lengths, order = torch.sort(batch.lengths(), stable=True)
        chunks = split_by_tokens(lengths.tolist(), _CHUNK_TOKENS)
        return torch.cat([represent(batch.select(order[chunk])) for chunk in chunks])[torch.argsort(order)]

    return encode
