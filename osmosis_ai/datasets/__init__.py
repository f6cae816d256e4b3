"""JSON Lines and CSV files -> rows."""

from osmosis_ai.datasets.files import dataset_fingerprint, load_rows

__all__ = ["dataset_fingerprint", "load_rows"]
