"""Context policies that a configuration loads by name: one good, the others wrong in one way."""

from __future__ import annotations

from typing import Any

from voicemem.context.policies import Choice, Remembered


class Newest:
    """A policy of an operator's own: the newest message of each side."""

    def choose(self, remembered: Remembered) -> Choice:
        newest = {message.role: index for index, message in enumerate(remembered.messages)}
        return Choice(sorted(newest.values()), "older")


class Broken:
    """A policy that cannot be used, in one way or another."""

    def __init__(self, how: str = "raise") -> None:
        self.how = how

    def choose(self, remembered: Remembered) -> Any:
        if self.how == "raise":
            raise RuntimeError("oh")
        wrong: dict[str, Any] = {
            "no choice": [0],
            "out of range": Choice([99]),
            "no number": Choice(["a"]),  # type: ignore[list-item]
            "no budget": Choice([0], budget="5"),  # type: ignore[arg-type]
            "no room": Choice([0], budget=0),
            "no summary": Choice([0], summary="They spoke."),  # type: ignore[arg-type]
        }
        return wrong[self.how]


class Small:
    """The newest message, and a budget for the results of tools."""

    def choose(self, remembered: Remembered) -> Choice:
        return Choice([len(remembered.messages) - 1], "older", budget=50)


class Backwards:
    """A policy that has its own idea of order."""

    def choose(self, remembered: Remembered) -> Choice:
        return Choice([len(remembered.messages) - 1, 0, 0])


class Choosy:
    """A policy that says what is wrong with its parameters."""

    def __init__(self, step: int = 2) -> None:
        if step < 1:
            raise ValueError("step must be\nat least 1")

    def choose(self, remembered: Remembered) -> Choice:
        return Choice([])
