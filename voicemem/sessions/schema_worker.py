"""The process in which JSON Schemas are compiled, and documents checked against them.

A check that takes too long, or too much memory, is ended by the kernel; the next one starts the process again.
"""

import asyncio
import atexit
import os
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from subprocess import DEVNULL, PIPE, Popen

import msgspec
from msgspec import Raw

from voicemem.documents.json_schema import TOO_SLOW, invalid_schema, validation_errors
from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.codec import drop_nulls
from voicemem.protocol.types import JsonObject

CPU_S = 0.5
"""CPU seconds of one check; ordinary ones take less than 0.01."""
MAX_BYTES = 512 * 1024 * 1024
"""Address space of the process."""


class SchemaWorker:
    """The process, and the one thread that talks to it; both start with the first check."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "schema-worker")
        self.process: Popen[bytes] | None = None

    async def check(self, schema: JsonObject, document: JsonObject | None = None) -> None:
        """Refuse a schema that cannot be used, or a document that breaks it. Raises `Refused` (`invalid_field`).

        Raises `StoreUnavailable` where the process cannot be started.
        """
        try:
            answer = asyncio.get_running_loop().run_in_executor(self.thread, self.find_fault, schema, document)
        except RuntimeError:  # there can be no more threads
            raise cannot_check("no thread") from None
        if fault := await answer:
            raise Refused("invalid_field", fault)

    async def check_config(self, config: JsonObject) -> None:
        """Refuse a configuration, or a patch of one, with a schema that cannot be used. Raises `Refused`."""
        memory = config.get("memory")
        extract = memory.get("extract") if isinstance(memory, dict) else None
        for place, section in (("working_memory", config.get("working_memory")), ("memory.extract", extract)):
            schema = section.get("schema") if isinstance(section, dict) else None
            if isinstance(schema, dict):
                try:
                    await self.check(drop_nulls(schema))
                except Refused as refused:
                    raise Refused(refused.code, f"In `{place}` of the configuration: {refused.detail}") from None

    def find_fault(self, schema: JsonObject, document: JsonObject | None) -> str:
        """Return the fault as a sentence; "" where there is none. Raises `StoreUnavailable`."""
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.process = start_process()
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None
        assert answers is not None
        with suppress(BrokenPipeError):
            requests.write(msgspec.json.encode((schema, document)) + b"\n")
            requests.flush()
        fault = TOO_SLOW if document is not None else invalid_schema("it takes too long, or too much memory").detail
        while (line := answers.readline()) not in (b"", b"\n"):
            fault = msgspec.json.decode(line, type=str)
        if not line:  # the process is ending
            self.process.wait()
        return fault

    def end(self) -> None:
        """End the process, if there is one, and close its pipes."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


def start_process() -> Popen[bytes]:
    """Start the process; return it once it is ready for the first check. Raises `StoreUnavailable`."""
    # Not from the working directory: a file there may have the name of a module.
    command, paths = (sys.executable, "-P", "-m", __name__), os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=paths)  # noqa: S603 (this module)
    except OSError as error:
        raise cannot_check(type(error).__name__) from None
    assert process.stdout is not None
    if not process.stdout.readline():  # it has ended before it was ready
        process.communicate()
        raise cannot_check("its process does not start")
    return process


def cannot_check(why: str) -> StoreUnavailable:
    return StoreUnavailable(f"No JSON Schema can be checked at the moment: {why}.")


SCHEMA_WORKER = SchemaWorker()
atexit.register(SCHEMA_WORKER.end)
os.register_at_fork(after_in_child=lambda: SchemaWorker.__init__(SCHEMA_WORKER))  # the thread is not in the copy


def main() -> None:
    """The process: a line `[schema, document]` comes in, a line for each sentence and an empty one go out.

    An empty line says that it is ready. It ends with the service, whose signals may come to all of its processes.
    """
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    with suppress(ValueError, OSError):  # not on macOS, nor where a sandbox forbids it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        schema, document = msgspec.json.decode(line, type=tuple[Raw, JsonObject | None])
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # its signal ends the process, also in the middle of a pattern
        for fault in validation_errors(bytes(schema), document):
            sys.stdout.buffer.write(msgspec.json.encode(fault) + b"\n")
            sys.stdout.buffer.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
