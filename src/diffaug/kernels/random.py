"""Random numbers in kernels: a function of the seed, so that a backward pass can draw the same ones again."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chance(seed, number):
    """A random number in [0, 1) for each element of ``number``, from a hash, which is good enough for dropout."""
    bits = scrambled(scrambled(number.to(tl.uint32)) ^ seed.to(tl.uint32))
    return (bits >> 8).to(tl.float32) * (1.0 / (1 << 24))


@triton.jit
def scrambled(number):
    """A 32-bit hash in which every input bit changes half of the output bits; the constants are C. Wellons'."""
    number = (number ^ (number >> 16)) * 0x7FEB352D
    number = (number ^ (number >> 15)) * 0x846CA68B
    return number ^ (number >> 16)
