"""Evaluation: rollouts against any model, and what may be said about their rewards."""
