"""Names the types of frames of vendors' SDKs that no dialect knows, where the SDK does not go with the tests' packages.

    python -m tests.process.packaging.vendor_types

Each SDK has an environment of its own. It needs a package index, so it is not one of the tests, and exits with 1 when a
type is not known. `tests/unit/dialects/test_vendor_types.py` has those of the other SDKs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.process.packaging.matrix import Environment, pythons
from voicemem.dialects.call_starts import CALL_STARTS, CallStart, StartAnswer, Variables
from voicemem.dialects.callers import Caller
from voicemem.dialects.vapi.translation import KINDS

VAPI = """
import json, typing, vapi
kinds = [getattr(vapi, name) for name in dir(vapi) if name.startswith("ServerMessage") and name.endswith("Type")]
inner = [one for kind in kinds for one in typing.get_args(kind)]
names = {name for one in inner for name in (one, *typing.get_args(one)) if isinstance(name, str)}
print(json.dumps(sorted(names)))
"""


ANSWER = """
import json, sys, vapi
answer = vapi.ServerMessageResponseAssistantRequest.model_validate(json.loads(sys.argv[1]))
print(json.dumps([answer.assistant_id, answer.assistant_overrides.variable_values]))
"""


def answer_is_read(environment: Environment) -> bool:
    """Return whether Vapi's type for the answer at the start of a call reads ours."""
    variables: Variables = {"memory": "It is known.", "open": True, "lines": 3}
    start = CallStart(Caller(), None)
    answer = CALL_STARTS["vapi"].answer(start, StartAnswer(variables, assistant_id="asst_1"))
    read: object = json.loads(environment.run("-c", ANSWER, json.dumps(answer)))
    return read == ["asst_1", variables]


def main() -> int:
    python, _ = pythons()
    with tempfile.TemporaryDirectory(prefix="voicemem-vendors-") as folder:
        environment = Environment(Path(folder) / "vapi", python)
        environment.install("vapi_server_sdk>=3")
        stated = json.loads(environment.run("-c", VAPI))
        answered = answer_is_read(environment)
    unknown = sorted({name.partition("[")[0] for name in stated} - KINDS.keys() - {"final", "partial"})
    sys.stdout.write(f"vapi: {len(stated)} types, of which {unknown or 'none'} are unknown\n")
    sys.stdout.write(f"vapi: its type {'reads' if answered else 'does not read'} the answer at the start of a call\n")
    return 1 if unknown or len(stated) <= 5 or not answered else 0


if __name__ == "__main__":
    sys.exit(main())
