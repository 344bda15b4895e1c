"""Makes a typed client of the OpenAPI document with a generator of npm's, and has the compiler of TypeScript read it.

    python -m tests.process.packaging.generators

It needs a package index and Node, so it is not one of the tests; `make packaging` runs it. It exits with 1 when the
document is one that the generator or the compiler refuses.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from voicemem.server.http.openapi import openapi_json
from voicemem.server.rest import ROUTES

PACKAGES = ("openapi-typescript@7.13.0", "typescript@5.9.3")
LIMIT_S = 900.0
PROGRAM = """\
import type { paths } from "./api";
type History = paths["/v1/sessions/{id}/history"]["get"]["responses"]["200"]["content"]["application/json"];
export const length = (history: History): number => history.contents.length;
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="voicemem-generators-") as name:
        folder = Path(name)
        (folder / "openapi.json").write_bytes(openapi_json(ROUTES))
        (folder / "use.ts").write_text(PROGRAM)
        for command in (
            ("npm", "install", "--silent", "--no-fund", "--no-audit", *PACKAGES),
            ("node_modules/.bin/openapi-typescript", "openapi.json", "-o", "api.d.ts"),
            ("node_modules/.bin/tsc", "--noEmit", "--strict", "use.ts"),
        ):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode:
                sys.stderr.write(f"{' '.join(command)} exits with {done.returncode}: {done.stdout}{done.stderr}\n")
                return 1
    sys.stdout.write("| client in TypeScript | passed | it compiles |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
