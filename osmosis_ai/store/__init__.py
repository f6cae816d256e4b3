"""The store: one embedded database per workspace."""
