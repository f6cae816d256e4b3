"""Osmosis: evaluate and train language-model agents with reinforcement learning."""

__version__ = "0.1.0"
