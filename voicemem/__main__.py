"""`python -m voicemem` runs the command `voicemem`."""

from __future__ import annotations

from voicemem.cli import main

main()
