"""How sessions are chosen in a query."""

from __future__ import annotations

import re
from typing import Annotated

from voicemem.protocol.types import matching

Label = Annotated[str, matching("^[^:=]+[:=]", "A label to filter by must be KEY:VALUE")]


def parse_label(text: str | None) -> tuple[str, str] | None:
    """Split the label of a query into its key and value."""
    if text is None:
        return None
    key, value = re.split("[:=]", text, maxsplit=1)
    return key, value
