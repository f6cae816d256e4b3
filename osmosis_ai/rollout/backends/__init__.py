"""Places to run user code."""
