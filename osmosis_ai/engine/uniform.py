"""Random numbers without a state: what is sampled in one place cannot move what is sampled in another."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, a function of its arguments alone."""
    return (mix(mix(seed) + position) >> 11) * 2.0**-53


def mix(value: int) -> int:
    """splitmix64 (Steele, Lea, Flood 2014): any integer to 64 bits; changing one bit changes half of them."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
