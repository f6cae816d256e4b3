"""What is promised: a new public name is a decision, and a lost one breaks somebody's code."""

import osmosis_ai
import osmosis_ai.rollout
from osmosis_ai.rollout.integrations.agents import openai_agents, strands


def public(module: object) -> set[str]:
    # pytest puts names with an "@" into modules that it rewrites: our plugin is one
    return {name for name in vars(module) if not name.startswith(("_", "@"))} - {"annotations"}


def test_the_package_itself_promises_its_version_and_its_folders():
    folders = {
        "cli", "config", "controller", "datasets", "engine", "errors", "eval", "findings", "gateway",
        "lean_http", "lean_server", "process", "providers", "pytest_plugin", "rewards", "rollout", "store",
        "toml_places", "train", "types",
    }  # fmt: skip
    assert public(osmosis_ai) <= folders
    assert osmosis_ai.__version__.count(".") == 2


def test_what_users_import_from_the_package():
    assert sorted(osmosis_ai.__all__) == [
        "CompletionsResult",
        "InitResponse",
        "MissingAPIKeyError",
        "ModelNotFoundError",
        "OpenAIFunctionToolSchema",
        "OsmosisLLMClient",
        "OsmosisRolloutError",
        "OsmosisServerError",
        "OsmosisTimeoutError",
        "OsmosisTransportError",
        "OsmosisValidationError",
        "ProviderRequestError",
        "RolloutAgentLoop",
        "RolloutContext",
        "RolloutMetrics",
        "RolloutRequest",
        "RolloutResponse",
        "RolloutResult",
        "RubricResult",
        "__version__",
        "create_app",
        "evaluate_rubric",
        "get_agent_loop",
        "list_agent_loops",
        "osmosis_reward",
        "osmosis_rubric",
        "register_agent_loop",
    ]
    for name in osmosis_ai.__all__:
        assert getattr(osmosis_ai, name) is not None


def test_what_users_import_from_rollout():
    assert sorted(osmosis_ai.rollout.__all__) == [
        "AgentLoopConfig",
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
        "RolloutAgentLoop",
        "RolloutClientSettings",
        "RolloutContext",
        "RolloutErrorCategory",
        "RolloutRequest",
        "RolloutResult",
        "RolloutSample",
        "RolloutSettings",
        "RolloutStatus",
        "SampleSource",
        "create_app",
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
