"""Vectors of texts, by OpenAI's `/embeddings`: https://platform.openai.com/docs/api-reference/embeddings.

A vector is returned as stores keep it: little-endian 32-bit floats, normalised to length 1, so that stored vectors can
be compared without their lengths.
"""

import asyncio
import sys
from array import array
from collections.abc import Awaitable, Callable, Sequence
from math import hypot, isfinite

import msgspec
from msgspec import Struct

from voicemem.config.service import MAX_DIMENSIONS
from voicemem.errors import LlmFailed
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.protocol.types import JsonObject
from voicemem.telemetry.metrics import Metrics

MAX_BATCH = 64
MAX_CHARACTERS = 2_000
"""The most characters of a text that are embedded, about 500 tokens, for small models. The rest is found by words."""
NUMBER_BYTES, ENVELOPE_BYTES = 32, 64 * 1024
"""The most bytes of an answer: for each number, and for the rest."""
Complete = Callable[[LlmEndpoint, JsonObject, int], Awaitable[bytes]]
"""Sends a body, and returns the whole answer of at most so many bytes. Raises `LlmFailed`."""


class EmbeddedText(Struct, frozen=True):
    """One vector of an answer, and the place of its text in the request."""

    embedding: list[float]
    index: int | None = None


class EmbeddingsAnswer(Struct, frozen=True):
    data: list[EmbeddedText]


DECODER = msgspec.json.Decoder(EmbeddingsAnswer)


class Embedder:
    """Makes vectors, all of one model and of one size.

    A size is requested only from servers whose default differs, since many refuse the parameter.
    """

    def __init__(self, complete: Complete, endpoint: LlmEndpoint, dimensions: int | None, metrics: Metrics) -> None:
        self.complete = complete
        self.endpoint = endpoint
        self.dimensions = dimensions
        """None until the first answer, if not configured."""
        self.sends_dimensions = False
        self.metrics = metrics

    @property
    def name(self) -> str | None:
        """The name of its vectors, which can be compared only with vectors of the same name; None until it is known."""
        return None if self.dimensions is None else f"{self.endpoint.model} {self.dimensions}"

    async def embed(self, texts: Sequence[str], use: str) -> list[bytes | None]:
        """Return a vector for each of at most `MAX_BATCH` texts; None for one without meaning to the model.

        `use` is the purpose in the metrics. Raises `LlmFailed`.
        """
        result = "failed"
        try:
            vectors = await self.ask(texts, self.sends_dimensions)
            if vectors is None and not self.sends_dimensions:
                vectors = await self.ask(texts, True)
                self.sends_dimensions = vectors is not None
            if vectors is None:
                raise LlmFailed("wrong_dimensions")
            result = "answered"
            return vectors
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        finally:
            self.metrics.llm_calls.labels(use, result).inc()

    async def ask(self, texts: Sequence[str], for_dimensions: bool) -> list[bytes | None] | None:
        """Send one request. Return None if its vectors have the wrong size. Raises `LlmFailed`."""
        body: JsonObject = {
            "model": self.endpoint.model,
            "input": [text[:MAX_CHARACTERS] for text in texts],
            "encoding_format": "float",
        }
        if for_dimensions:
            body["dimensions"] = self.dimensions
        size = MAX_DIMENSIONS if self.dimensions is None else max(self.dimensions, 1_024)
        answer = await self.complete(self.endpoint, body, ENVELOPE_BYTES + len(texts) * size * NUMBER_BYTES)
        dimensions, vectors = await asyncio.to_thread(parse_vectors, answer, len(texts))
        if self.dimensions is None:
            self.dimensions = dimensions
        return vectors if dimensions == self.dimensions else None


def parse_vectors(answer: bytes, count: int) -> tuple[int, list[bytes | None]]:
    """Return the vectors' size, and the vectors in the order of the texts. Raises `LlmFailed` (`invalid_answer`)."""
    try:
        data = DECODER.decode(answer).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LlmFailed("invalid_answer") from None
    by_place = {place if one.index is None else one.index: one.embedding for place, one in enumerate(data)}
    sizes = {len(numbers) for numbers in by_place.values()}
    if len(data) != count or by_place.keys() != set(range(count)) or len(sizes) != 1 or 0 in sizes:
        raise LlmFailed("invalid_answer")
    return sizes.pop(), [to_vector(by_place[place]) for place in range(count)]


def to_vector(numbers: Sequence[float]) -> bytes | None:
    """Return numbers as a vector of length 1; None if all are 0. Raises `LlmFailed` (`invalid_answer`)."""
    length = hypot(*numbers)
    if not isfinite(length):
        raise LlmFailed("invalid_answer")
    if not length:
        return None
    vector = array("f", [number / length for number in numbers])
    if sys.byteorder == "big":
        vector.byteswap()
    return vector.tobytes()
