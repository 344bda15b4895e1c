"""Makes typed clients of the OpenAPI document: TypeScript by a generator of npm's, Python by one of PyPI's.

    python -m tests.process.packaging.generators

It needs package indexes and Node, so it is not one of the tests; `make packaging` runs it. It exits with 1 when a
generator refuses the document, or a compiler what was made of it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path

from voicemem.server.http.openapi import openapi_json
from voicemem.server.rest import ROUTES

PACKAGES = ("openapi-typescript@7.13.0", "typescript@5.9.3")
PYTHON_PACKAGE = "openapi-python-client==0.29.1"
LIMIT_S = 900.0
PROGRAM = """\
import type { paths } from "./api";
type History = paths["/v1/sessions/{id}/history"]["get"]["responses"]["200"]["content"]["application/json"];
export const length = (history: History): number => history.contents.length;
"""
PYTHON_PROGRAM = """\
import importlib, pkgutil
import made
for module in pkgutil.walk_packages(made.__path__, "made."):
    importlib.import_module(module.name)
assert made.models.History
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="voicemem-generators-") as name:
        folder = Path(name)
        (folder / "openapi.json").write_bytes(openapi_json(ROUTES))
        (folder / "use.ts").write_text(PROGRAM)
        typescript = (
            ("npm", "install", "--silent", "--no-fund", "--no-audit", *PACKAGES),
            ("node_modules/.bin/openapi-typescript", "openapi.json", "-o", "api.d.ts"),
            ("node_modules/.bin/tsc", "--noEmit", "--strict", "use.ts"),
        )
        venv.create(folder / "env", with_pip=True)
        programs = folder / "env" / "bin"
        generate = ("generate", "--path", "openapi.json", "--output-path", "made", "--meta", "none")
        python = (
            (str(programs / "python"), "-m", "pip", "install", "--quiet", PYTHON_PACKAGE),
            (str(programs / "openapi-python-client"), *generate),
            (str(programs / "python"), "-c", PYTHON_PROGRAM),
        )
        checks = (("TypeScript", typescript, "it compiles"), ("Python", python, "all its modules are imported"))
        return max([check(language, commands, folder, says) for language, commands, says in checks])


def check(language: str, commands: Iterable[Sequence[str]], folder: Path, says: str) -> int:
    """Run these one after the other; 1 when one of them fails."""
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            sys.stderr.write(f"{' '.join(command)} exits with {done.returncode}: {done.stdout}{done.stderr}\n")
            return 1
    sys.stdout.write(f"| client in {language} | passed | {says} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
