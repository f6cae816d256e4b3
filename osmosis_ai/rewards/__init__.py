"""Reward functions: `@osmosis_reward`, `@osmosis_rubric`, and `evaluate_rubric`, which asks a judge model."""
