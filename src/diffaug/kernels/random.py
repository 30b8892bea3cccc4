"""Random numbers inside of kernels: the same for the same seed, so that a backward pass can draw them again."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chance(seed, number):
    """A random number in [0, 1) for each of ``number``: dropout needs no better generator than a good hash."""
    bits = scrambled(scrambled(number.to(tl.uint32)) ^ seed.to(tl.uint32))
    return (bits >> 8).to(tl.float32) * (1.0 / (1 << 24))


@triton.jit
def scrambled(number):
    """Every bit of a 32-bit number changes half of the result's: a hash with the constants of C. Wellons' search."""
    number = (number ^ (number >> 16)) * 0x7FEB352D
    number = (number ^ (number >> 15)) * 0x846CA68B
    return number ^ (number >> 16)
