"""What is promised: a new public name is a decision, and a lost one breaks somebody's code."""

import osmosis_ai
import osmosis_ai.rollout
from osmosis_ai.rollout.integrations.agents import openai_agents, strands


def public(module: object) -> set[str]:
    return {name for name in vars(module) if not name.startswith("_")}


def test_the_package_itself_promises_its_version_and_its_folders():
    folders = {
        "cli", "config", "controller", "datasets", "engine", "errors", "eval", "gateway", "providers",
        "rollout", "store", "train", "types",
    }  # fmt: skip
    assert public(osmosis_ai) <= folders
    assert osmosis_ai.__version__.count(".") == 2


def test_what_users_import_from_rollout():
    assert sorted(osmosis_ai.rollout.__all__) == [
        "AgentWorkflow",
        "AgentWorkflowConfig",
        "AgentWorkflowContext",
        "BaseConfig",
        "ConcurrencyConfig",
        "ExecutionBackend",
        "ExecutionRequest",
        "ExecutionResult",
        "Grader",
        "GraderConfig",
        "GraderContext",
        "LocalBackend",
        "OsmosisRolloutModel",
        "OsmosisStrandsAgent",
        "RolloutContext",
        "RolloutErrorCategory",
        "RolloutSample",
        "RolloutStatus",
        "SampleSource",
        "create_rollout_server",
        "get_rollout_context",
    ]
    assert set(osmosis_ai.rollout.__all__) <= set(dir(osmosis_ai.rollout))


def test_what_users_import_from_the_integrations():
    assert {"OsmosisRolloutModel", "OsmosisStrandsAgent", "RolloutContext"} <= public(strands)
    assert sorted(openai_agents.__all__) == [
        "OsmosisAgent",
        "OsmosisLitellmModel",
        "OsmosisMemorySession",
        "OsmosisRolloutModel",
        "RolloutContext",
        "SessionSampleSource",
        "current_sample_id",
    ]
