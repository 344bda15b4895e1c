"""Makes typed clients of the OpenAPI document: TypeScript by a generator of npm's, Python by one of PyPI's.

    python -m tests.process.packaging.generators

It needs package indexes and Node, so it is not one of the tests; `make packaging` runs it. It exits with 1 when a
generator refuses the document, or a compiler what was made of it.
"""

from __future__ import annotations

import sys
import tempfile
import venv
from pathlib import Path

from tests.process.packaging.commands import check
from tests.support.routes import ROUTES
from voicemem.server.http.openapi import openapi_json

PACKAGES = ("openapi-typescript@7.13.0", "typescript@5.9.3")
PYTHON_PACKAGE = "openapi-python-client==0.29.1"
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
    with tempfile.TemporaryDirectory(prefix="voicemem-generators-") as made:
        folder = Path(made)
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
        checks = (
            ("client in TypeScript", typescript, "it compiles"),
            ("client in Python", python, "all its modules are imported"),
        )
        return max([check(name, commands, folder, says) for name, commands, says in checks])


if __name__ == "__main__":
    sys.exit(main())
