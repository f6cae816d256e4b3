"""`python -m osmosis_ai` is `osmosis`."""

from osmosis_ai.cli.main import main

main()
