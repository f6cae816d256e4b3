"""JSON Lines, CSV, Parquet and JSON files -> rows."""

from osmosis_ai.datasets.files import Dataset, dataset_fingerprint, load_rows, open_dataset
from osmosis_ai.datasets.selection import Selection

__all__ = ["Dataset", "Selection", "dataset_fingerprint", "load_rows", "open_dataset"]
