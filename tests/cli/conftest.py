import pytest
from stored_workspace import Bench


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys) -> Bench:
    return Bench(tmp_path, monkeypatch, capsys)
