"""Vectors that tests of stores give to texts: directions, so that what is near can be told by hand."""

from __future__ import annotations

from voicemem.llm.embeddings import to_vector

EMBEDDER = "axes 4"
AXES = {"north": (0.0, 1.0, 0.0, 0.0), "east": (1.0, 0.0, 0.0, 0.0), "northeast": (1.0, 1.0, 0.0, 0.0)}


def vector_of(text: str) -> bytes | None:
    """A vector for the first word of a text: a direction, or one of its own; none for `nothing`."""
    word = text.split()[0]
    return None if word == "nothing" else to_vector(AXES.get(word, (0.0, 0.0, 0.1, 1.0)))
