"""One file per agent framework; importing one imports its framework."""
