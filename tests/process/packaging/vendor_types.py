"""Names the types of frames of vendors' SDKs that no dialect knows, where the SDK does not go with the tests' packages.

    python -m tests.process.packaging.vendor_types

Each SDK has an environment of its own. It needs a package index, so it is not one of the tests, and exits with 1 when a
type is not known. `tests/unit/dialects/test_vendor_types.py` has those of the other SDKs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.process.packaging.matrix import Environment, pythons
from tests.support.servers.vendor_apis import KEY, NUMBERS, WEBHOOKS, vapi_call, vendor_server
from voicemem.dialects.call_starts import CALL_STARTS, CallStart, StartAnswer, Variables
from voicemem.dialects.caller_fields import Caller
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


CALLS = """
import json, sys, vapi
from datetime import datetime
client = vapi.Vapi(token=sys.argv[2], base_url=sys.argv[1])
calls = client.calls.list(limit=100, created_at_ge=datetime.fromisoformat("2025-01-01T00:00:00+00:00"))
print(json.dumps([[call.id, call.customer.number, len(call.artifact.messages)] for call in calls]))
"""


async def calls_are_read(environment: Environment) -> bool:
    """Return whether Vapi's client reads the calls of the API that the tests of `voicemem import` ask."""
    async with vendor_server("vapi", vapi_call("call_1")) as api:
        printed = await asyncio.to_thread(environment.run, "-c", CALLS, api.url, KEY)
    messages = len(WEBHOOKS["vapi"]["message"]["artifact"]["messages"])
    return bool(json.loads(printed) == [["call_1", NUMBERS[0], messages]])


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
        listed = asyncio.run(calls_are_read(environment))
    unknown = sorted({name.partition("[")[0] for name in stated} - KINDS.keys() - {"final", "partial"})
    sys.stdout.write(f"vapi: {len(stated)} types, of which {unknown or 'none'} are unknown\n")
    sys.stdout.write(f"vapi: its type {'reads' if answered else 'does not read'} the answer at the start of a call\n")
    sys.stdout.write(
        f"vapi: its client {'reads' if listed else 'does not read'} the calls that the import is tested with\n"
    )
    return 1 if unknown or len(stated) <= 5 or not answered or not listed else 0


if __name__ == "__main__":
    sys.exit(main())
