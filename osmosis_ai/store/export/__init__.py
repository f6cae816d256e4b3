"""Runs as files: JSON Lines (and back), ATIF trajectories, Parquet."""
