from pathlib import Path

import aiohttp
import pytest
from gateway_parts import MemoryStore, OpenGateway, make_tokenizer_folder

from osmosis_ai.engine.policy import chat_template
from osmosis_ai.gateway.render import TemplateRenderer


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A folder with the tokenizer and the template of a new policy, without weights."""
    return make_tokenizer_folder(tmp_path_factory.mktemp("policy"), chat_template())


@pytest.fixture(scope="session")
def renderer(folder) -> TemplateRenderer:
    return TemplateRenderer(folder)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def open_gateway(renderer, store):
    """`await open_gateway(answer, ...)` starts a gateway whose engine answers with the function's text."""
    opened: list[OpenGateway] = []
    async with aiohttp.ClientSession() as session:

        async def start(answer, **options) -> OpenGateway:
            gateway = await OpenGateway.start(answer, renderer, store, session, **options)
            opened.append(gateway)
            return gateway

        yield start
        for gateway in opened:
            await gateway.gateway.stop()
