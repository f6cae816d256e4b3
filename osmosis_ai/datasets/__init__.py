"""Datasets: files to rows."""
