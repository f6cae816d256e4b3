"""The wire and the base classes of the RolloutAgentLoop style, under their public paths."""
