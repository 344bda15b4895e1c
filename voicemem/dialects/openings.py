"""Frames that may be kept only after another: a prompt that an app sends may look like a text that a user has typed."""

from __future__ import annotations

from collections.abc import Callable

from voicemem.dialects.dialect import Frame

MAX_OPEN = 256
"""What one sender has opened that is remembered."""


class Openings:
    """What one sender has opened: frames that are parts of anything else are not kept."""

    def __init__(self) -> None:
        self.ids: dict[str, None] = {}

    def admits(self, frame: Frame, is_known: Callable[[str], bool] | None = None) -> bool:
        """Whether a frame may be kept; `is_known` tells of openings that came before, over another connection."""
        within = frame.within
        if within is not None and within not in self.ids and not (is_known is not None and is_known(within)):
            return False
        if frame.opens and frame.id is not None:
            self.ids.pop(frame.id, None)
            self.ids[frame.id] = None
            if len(self.ids) > MAX_OPEN:
                del self.ids[next(iter(self.ids))]
        return True
