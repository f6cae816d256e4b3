# ruff: noqa
# fmt: off
# Code blocks of seed document 002, as they stand there.
from osmosis_ai.rollout.integrations.agents.strands import OsmosisStrandsAgent

from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel

model = OsmosisRolloutModel(params={"temperature": 1.0})
