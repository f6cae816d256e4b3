"""Engines: prompt tokens in, completion tokens out, and weights that learn."""
