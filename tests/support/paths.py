"""Where the files of the project are."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "voicemem"
DOCS = ROOT / "docs"
DEPLOY = ROOT / "deploy"
FIXTURES = ROOT / "fixtures" / "voicemem"
TRUTH = ROOT / "fixtures" / "truth"
