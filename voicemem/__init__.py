"""voicemem: the memory of voice agents. What was really said, and what was really heard, recorded durably."""

from __future__ import annotations

__version__ = "0.1.0"
