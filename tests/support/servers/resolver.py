"""A resolver of names that answers as a test says."""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult


class FakeResolver(AbstractResolver):
    """Answers each query, for any name, with the next list of addresses, and the last list from then on.

    An empty list is a name that does not exist.
    """

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not addresses:
            raise OSError("no such name")
        flags = socket.AI_NUMERICHOST
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=flags)
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""
