"""For all tests."""

import signal
from collections.abc import Generator
from importlib.util import find_spec

import pytest

# A shell starts background jobs with Ctrl-C ignored, and programs started by the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

TRAIN = {"torch", "transformers", "safetensors", "peft", "matplotlib"}
MISSING = {name for name in TRAIN if find_spec(name) is None}
# Without the extra `train` the tests of a policy are skipped, and those of everything else run.
ABOUT_A_POLICY = [
    "engine/*",
    "train/*",
    "e2e/*",
    "cli/test_cli_documents.py",
    "controller/test_controller_audit.py",
    "controller/test_controller_judge.py",
    "controller/test_controller_training.py",
    "gateway/test_gateway_adversarial.py",
]
collect_ignore_glob = ABOUT_A_POLICY if MISSING else []
# These begin first, so that every worker has something short to end with. The first makes a policy of its own
# while another worker makes the one that most of the others share.
LONG = [
    "e2e/test_e2e_two_agents.py",
    "e2e/",
    "cli/test_cli_every_command.py",
    "gateway/test_gateway_durability.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = item.nodeid.removeprefix("tests/")
        return next((number for number, long in enumerate(LONG) if name.startswith(long)), len(LONG))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    yield from skipping_what_is_missing()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    yield from skipping_what_is_missing()


def skipping_what_is_missing() -> Generator[None]:
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if error.name in MISSING:
            pytest.skip(f"needs {error.name}, of the extra train")
        raise
