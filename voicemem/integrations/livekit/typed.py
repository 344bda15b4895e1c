"""Messages of the user that the program hands to `generate_reply`: they stand before what the LLM answers to them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from voicemem.integrations.ledger import Ledger
from voicemem.integrations.livekit.messages import text_of

MAX_TYPED = 64


class TypedMessages:
    """The newest of them, by id. LiveKit tells of one only when its answer is the next to be played."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.known: OrderedDict[str, bool] = OrderedDict()
        """Whether the memory has each already."""

    def expect(self, message_id: str) -> None:
        """The program has handed a message over."""
        self.known[message_id] = False
        while len(self.known) > MAX_TYPED:
            self.known.popitem(last=False)

    def asked(self, chat_ctx: Any) -> None:
        """The LLM is asked: what this context has of them is said before the answer."""
        if not all(self.known.values()):
            for item in chat_ctx.items:
                self.tell(item)

    def tell(self, item: Any) -> bool:
        """Remember a message, if it is one of these and was not remembered before; says whether it is one."""
        if item.id not in self.known:
            return False
        text = text_of(item)
        if text and not self.known[item.id]:
            self.ledger.user_typed(text, item.created_at * 1000)
        self.known[item.id] = True
        return True
