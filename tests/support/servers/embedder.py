"""An OpenAI-compatible server of embeddings that has no model: it hashes the three-character pieces of words.

It proves that vectors are made, kept, compared and erased. It knows nothing of meaning: texts are alike where they are
written alike, so it says nothing about how well searches find things.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

from aiohttp import web

from tests.support.servers.llm_server import running_llm
from voicemem.protocol.types import JsonObject

MODEL = "hashed-trigrams (for tests; knows no meaning)"
DIMENSIONS = 256
Distort = Callable[[list[list[float]]], Any]
"""What becomes of right vectors: an answer's `data`, or a whole answer."""


def trigram_vector(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """How often each three-character piece of the words is in a text, by the hashes of the pieces."""
    numbers = [0.0] * dimensions
    for word in text.casefold().split():
        padded = f" {word.strip('.,;:!?')} "
        for first in range(len(padded) - 2):
            digest = blake2b(padded[first : first + 3].encode(errors="replace"), digest_size=8).digest()
            numbers[int.from_bytes(digest) % dimensions] += 1.0
    return numbers


class EmbeddingServer:
    """Answers as it is told, truly unless something is set."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self.dimensions = dimensions
        """Its own; a request may ask for others."""
        self.takes_dimensions = True
        self.requests: list[JsonObject] = []
        self.keys: list[str | None] = []
        self.asked: Counter[str] = Counter()
        """How often it was asked for each text."""
        self.status = 200
        self.refused: set[str] = set()
        """Texts for which it answers 400, with all that come with them."""
        self.distort: Distort | None = None
        self.go_on = asyncio.Event()
        """It answers while this is set."""
        self.go_on.set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization"))
        texts = body["input"]
        self.asked.update(texts)
        await self.go_on.wait()
        refuses_size = "dimensions" in body and not self.takes_dimensions
        if self.status != 200 or refuses_size or self.refused.intersection(texts):
            status = 400 if self.status == 200 else self.status
            return web.json_response({"error": {"message": "no"}}, status=status)
        vectors = self.vectors(texts, body.get("dimensions", self.dimensions))
        answer = self.distort(vectors) if self.distort is not None else embeddings(vectors)
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type="application/json")
        return web.json_response(answer)

    def vectors(self, texts: Sequence[str], dimensions: int) -> list[list[float]]:
        return [trigram_vector(text, dimensions) for text in texts]


def embeddings(vectors: Sequence[Sequence[float]]) -> JsonObject:
    """An answer in OpenAI's form."""
    data = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": MODEL, "usage": {"prompt_tokens": 1, "total_tokens": 1}}


@asynccontextmanager
async def embedding_server(dimensions: int = DIMENSIONS) -> AsyncIterator[EmbeddingServer]:
    """A running server; its `url` is a base URL."""
    async with running_llm(EmbeddingServer(dimensions), "/v1/embeddings") as server:
        yield server
