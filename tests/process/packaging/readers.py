"""Has the package `vcon` read calls that were exported as vCon.

    python -m tests.process.packaging.readers

It needs a package index, and versions of packages that cannot be installed beside what the tests need, so it is not one
of the tests; `make packaging` runs it. It exits with 1 when the package finds a vCon that is not valid.
"""

from __future__ import annotations

import sys
import tempfile
import venv
from pathlib import Path

from tests.process.packaging.commands import check
from tests.support.events import final
from tests.support.samples.exported_calls import EVENTS, HOSTILE, START, call_after
from voicemem.exports.vcon import vcon

PACKAGE = "vcon==0.10.0"
"""It says that it needs Python 3.12, and is content with 3.11; so its own requirements are named here."""
NEEDED = ("authlib", "mutagen", "pydash", "python-dateutil", "requests", "uuid6", "logger")
PROGRAM = """\
import sys
from vcon import Vcon
for path in sys.argv[1:]:
    call = Vcon.load(path)
    valid, problems = call.is_valid()
    if not valid or not call.dialog:
        sys.exit(f"{path}: {problems}")
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="voicemem-readers-") as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        python = str(folder / "env" / "bin" / "python")
        hostile = [final(turn, text, START + turn) for turn, text in enumerate(HOSTILE, 1)]
        for number, call in enumerate((call_after(*EVENTS, user_id="ann", name="front desk"), call_after(*hostile))):
            (folder / f"{number}.vcon.json").write_text("".join(vcon(call)))
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        commands = (
            (*pip, "--no-deps", "--ignore-requires-python", PACKAGE),
            (*pip, *NEEDED),
            (python, "-c", PROGRAM, *map(str, sorted(folder.glob("*.vcon.json")))),
        )
        return check("exports as vCon", commands, folder, f"{PACKAGE} reads them")


if __name__ == "__main__":
    sys.exit(main())
