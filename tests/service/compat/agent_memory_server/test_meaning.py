"""agent-memory-server's searches by meaning.

The embedder of these tests knows no meaning: texts are alike to it where they are written alike.
"""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from agent_memory_client import MemoryAPIClient
from agent_memory_client.models import ClientMemoryRecord, MemoryTypeEnum

from tests.support.callers.rest import RestClient
from tests.support.servers.embedder import MODEL, EmbeddingServer, embedding_server
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

TEXTS = {"nuts": "Ann is allergic to walnuts.", "dog": "Her dog is called Rex.", "lake": "They met at the lake."}
LIKE_WALNUTS = "waldnutts allergie"
"""No word of it is in a text, and many a piece of its words."""


@pytest.fixture
async def embedder() -> AsyncIterator[EmbeddingServer]:
    async with embedding_server() as running:
        yield running


@pytest.fixture
async def app(serve: Serve, embedder: EmbeddingServer) -> App:
    return await serve(
        embeddings_url=embedder.url, embeddings_model=MODEL, embeddings_key="sk-1", embeddings_wait_ms=10_000
    )


@pytest.fixture(autouse=True)
async def known(app: App, client: MemoryAPIClient) -> None:
    """The service knows a few things, and has their vectors."""
    records = [
        ClientMemoryRecord(id=id, text=text, memory_type=MemoryTypeEnum.SEMANTIC, user_id="ann")
        for id, text in TEXTS.items()
    ]
    await client.create_long_term_memory(records)
    assert app.services.vectors is not None
    maker = app.services.vectors.maker

    async def missing() -> int | None:
        return None if maker.embedder.name is None else await maker.count_missing()

    await eventually(0, missing)


async def found(app: App, text: str, mode: str, **wanted: float) -> list[tuple[str, float]]:
    """The ids and distances of what is found. The client has no method that names a mode."""
    body = {"text": text, "search_mode": mode, "recency_boost": False, **wanted}
    answer = await RestClient(app).call("POST", "/v1/long-term-memory/search", json=body)
    assert 200 == answer.status, answer.body
    return [(one["id"], one["dist"]) for one in answer.json["memories"]]


async def test_semantic_finds_what_means_the_same(app: App) -> None:
    """The nearest first, with the cosine's distance; all that the filters let through comes behind."""
    several = await found(app, LIKE_WALNUTS, "semantic")
    assert "nuts" == several[0][0]
    assert 0 < several[0][1] < 1
    assert {*TEXTS} == {id for id, _ in several}
    nearest, distance = (await found(app, TEXTS["dog"], "semantic"))[0]
    assert "dog" == nearest
    assert distance < 1e-3


async def test_a_threshold_is_a_distance_of_vectors(app: App) -> None:
    """What is farther is not shown, and nothing fills the page."""
    ((_, nearest), *_) = await found(app, LIKE_WALNUTS, "semantic")
    assert ["nuts"] == [id for id, _ in await found(app, LIKE_WALNUTS, "semantic", distance_threshold=nearest + 1e-6)]
    assert [] == await found(app, LIKE_WALNUTS, "semantic", distance_threshold=nearest - 1e-3)


async def test_keyword_goes_by_words_alone(app: App) -> None:
    """What only means the same is not found."""
    assert [] == await found(app, LIKE_WALNUTS, "keyword")
    assert ["dog"] == [id for id, _ in await found(app, "dog", "keyword")]


async def test_hybrid_weighs_words_and_meaning(app: App) -> None:
    """By its alpha: 0 is words alone, 1 is meaning alone."""
    query = f"lake {LIKE_WALNUTS}"
    first = {alpha: (await found(app, query, "hybrid", hybrid_alpha=alpha))[0][0] for alpha in (0.0, 1.0)}
    assert {0.0: "lake", 1.0: "nuts"} == first
    assert {*TEXTS} == {id for id, _ in await found(app, query, "hybrid")}


async def test_an_embedder_that_fails_leaves_words(app: App, embedder: EmbeddingServer) -> None:
    """A search answers all the same, as one without an embedder."""
    embedder.status = 500
    assert "lake" == (await found(app, "lake", "semantic"))[0][0]
