"""Embeddings are asked for in OpenAI's form, and answers are believed only where they are whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from math import isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.rows import every_row
from tests.support.servers.embedder import MODEL, EmbeddingServer, embedding_server, embeddings
from voicemem.errors import LlmFailed
from voicemem.llm.client import LlmClient
from voicemem.llm.embeddings import MAX_CHARACTERS, Embedder, to_vector
from voicemem.llm.endpoints import EMBEDDINGS_PATH, LlmEndpoint
from voicemem.store.vectors import floats_of
from voicemem.telemetry.metrics import Metrics

TEXTS = ["I am allergic to walnuts.", "My dog is called Rex.", "我对核桃过敏"]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    async with embedding_server() as running:
        yield running


@pytest.fixture
async def make(server: EmbeddingServer) -> AsyncIterator[Callable[..., Embedder]]:
    """Makes an embedder that asks the server, with a client of its own."""
    client = LlmClient()

    def made(dimensions: int | None = None, **endpoint: Any) -> Embedder:
        given = {"url": server.url, "api_key": "sk-1", "public_only": False, "model": MODEL, "path": EMBEDDINGS_PATH}
        return Embedder(client.complete, LlmEndpoint(**{**given, **endpoint}), dimensions, Metrics())

    yield made
    await client.close()


async def failure(embedder: Embedder) -> int | str:
    """Why texts could not be embedded."""
    with pytest.raises(LlmFailed) as failed:
        await embedder.embed(TEXTS, "embedding")
    return failed.value.why


async def test_a_request_is_openais(server: EmbeddingServer, make: Callable[..., Embedder]) -> None:
    """Model, texts and the form of numbers; the key is a bearer. A long text is cut off."""
    vectors = await make().embed([*TEXTS, "x" * 5_000], "embedding")
    (request,) = server.requests
    assert request == {"model": MODEL, "input": [*TEXTS, "x" * MAX_CHARACTERS], "encoding_format": "float"}
    assert server.keys == ["Bearer sk-1"]
    assert [len(vector or b"") for vector in vectors] == [4 * 256] * 4


async def test_an_embedder_is_known_by_its_model_and_size(make: Callable[..., Embedder]) -> None:
    """Of which it is the server that tells the second, unless it was given."""
    embedder = make()
    assert embedder.name is None
    await embedder.embed(TEXTS, "embedding")
    assert embedder.name == f"{MODEL} 256"
    assert make(64).name == f"{MODEL} 64"


async def test_dimensions_are_asked_for_where_the_server_has_others(
    server: EmbeddingServer, make: Callable[..., Embedder]
) -> None:
    """Once it is known, at once; a server that has the right size is never asked."""
    embedder = make(64)
    for _ in range(2):
        assert [len(vector or b"") for vector in await embedder.embed(TEXTS, "embedding")] == [4 * 64] * 3
    assert [request.get("dimensions") for request in server.requests] == [None, 64, 64]
    server.takes_dimensions = False
    assert await failure(embedder) == 400
    await make(256).embed(TEXTS, "embedding")
    assert await failure(make(64)) == 400


async def test_a_server_that_changes_its_size_is_not_believed(
    server: EmbeddingServer, make: Callable[..., Embedder]
) -> None:
    """Its vectors could not be compared with those that are there."""
    embedder = make()
    await embedder.embed(TEXTS, "embedding")
    server.distort = lambda vectors: embeddings([vector[:99] for vector in vectors])
    assert await failure(embedder) == "wrong_dimensions"
    assert embedder.name == f"{MODEL} 256"


def with_index(*indexes: Any) -> Callable[[list[list[float]]], Any]:
    """An answer whose vectors name these places."""
    return lambda vectors: {
        "data": [{"index": index, "embedding": vector} for index, vector in zip(indexes, vectors, strict=False)]
    }


def nan(vectors: list[list[float]]) -> bytes:
    return json.dumps(embeddings([[float("nan"), *vector[1:]] for vector in vectors])).encode()


@every_row(
    "distort",
    [
        lambda vectors: {},
        lambda vectors: [],
        lambda vectors: b"",
        lambda vectors: b"\xff{",
        lambda vectors: b"Service unavailable",
        lambda vectors: {"data": None},
        lambda vectors: {"data": []},
        lambda vectors: {"data": vectors},
        lambda vectors: {"error": {"message": "no"}},
        lambda vectors: embeddings(vectors[1:]),
        lambda vectors: embeddings([*vectors, vectors[0]]),
        lambda vectors: embeddings([[], [], []]),
        lambda vectors: embeddings([vectors[0][:5], *vectors[1:]]),
        lambda vectors: embeddings([["a"], ["b"], ["c"]]),  # type: ignore[list-item]
        lambda vectors: embeddings([[None, *vector] for vector in vectors]),  # type: ignore[list-item]
        lambda vectors: json.dumps(embeddings(vectors)).replace("1.0", "1e999").encode(),
        lambda vectors: json.dumps(embeddings(vectors)).replace("1.0", "-Infinity").encode(),
        nan,
        with_index(0, 1, 1),
        with_index(1, 2, 3),
        with_index(-1, 0, 1),
        with_index("0", "1", "2"),
        lambda vectors: b"[" * 100_000,
        lambda vectors: {"data": [{"index": 0, "embedding": "AAAA"}] * 3},
    ],
)
async def test_an_answer_that_is_not_whole_is_refused(
    server: EmbeddingServer, make: Callable[..., Embedder], distort: Any
) -> None:
    """Too few, too many, none, other sizes, no numbers, numbers that are none, places that are wrong, no JSON."""
    server.distort = distort
    assert await failure(make(256)) == "invalid_answer"


async def test_an_answer_that_is_too_long_is_not_read(server: EmbeddingServer, make: Callable[..., Embedder]) -> None:
    """It has a bound by the numbers that it may have."""
    server.distort = lambda vectors: b" " * 10_000_000
    assert await failure(make(256)) == "too_long"


async def test_vectors_are_put_in_the_order_of_their_texts(
    server: EmbeddingServer, make: Callable[..., Embedder]
) -> None:
    """By the places that the answer names; as they come where it names none."""
    right = await make().embed(TEXTS, "embedding")
    server.distort = lambda vectors: with_index(2, 0, 1)([vectors[2], vectors[0], vectors[1]])
    assert await make().embed(TEXTS, "embedding") == right
    server.distort = lambda vectors: {"data": [{"embedding": vector} for vector in vectors]}
    assert await make().embed(TEXTS, "embedding") == right


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_a_refusal_says_its_status(server: EmbeddingServer, make: Callable[..., Embedder], status: int) -> None:
    """What it means is for the caller to decide."""
    server.status = status
    assert await failure(make()) == status


async def test_a_server_that_is_away_is_a_failure(make: Callable[..., Embedder]) -> None:
    """As is one at an address that may not be called."""
    assert await failure(make(url="http://127.0.0.1:9/v1")) == "refused"
    assert await failure(make(public_only=True)) == "address_not_allowed"


def test_the_url_may_be_whole() -> None:
    """Or a base, with a query behind it."""
    for url, asked in (
        ("https://e.example/v1", "https://e.example/v1/embeddings"),
        ("https://e.example/v1/embeddings?version=2", "https://e.example/v1/embeddings?version=2"),
    ):
        assert LlmEndpoint(url, path=EMBEDDINGS_PATH).request_url == asked


numbers = st.floats(allow_nan=False, allow_infinity=False)


@examples(1)
@given(st.lists(numbers, min_size=1, max_size=8))
def test_vectors_have_length_1(given_numbers: list[float]) -> None:
    """Whatever the numbers are; only zeros make none."""
    try:
        vector = to_vector(given_numbers)
    except LlmFailed:
        assert max(map(abs, given_numbers)) > 1e300
        return
    if vector is None:
        assert not any(given_numbers)
    else:
        floats = floats_of(vector)
        assert len(floats) == len(given_numbers)
        assert isclose(sum(number * number for number in floats), 1.0, rel_tol=1e-5)
