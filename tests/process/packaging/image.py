"""Builds the container image and starts it: with podman or docker where one works, else step by step in a clean root.

    python -m tests.process.packaging.image

A clean root is this machine's own, below a layer that takes all changes and is thrown away: what the Containerfile
copies, runs and starts is the same then, only the base image is not. It needs root and a package index, so it is not
one of the tests; `make packaging` runs it. It exits with 1 unless the service takes a call, keeps it over a restart,
and stops on SIGTERM.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from tests.support.deploy_files import CONTAINER, instruction
from tests.support.paths import ROOT
from tests.support.processes.ports import free_ports

BUILDERS = ("podman", "docker")
LIMIT_S = 900.0
ADMIN_KEY = "only-for-this-check"
PORT = 8080
ASK = f"""
import json, time, urllib.request as r
def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    for _ in range(300):
        try:
            sent = r.Request("http://127.0.0.1:%d" + path, data, {{"Authorization": "Bearer {ADMIN_KEY}"}})
            with r.urlopen(sent, timeout=5) as answer:
                return json.loads(answer.read() or b"null")
        except OSError as error:
            if getattr(error, "code", 503) != 503:
                raise
            time.sleep(0.2)
    raise SystemExit("no answer to " + path)
"""
TAKE = """
ask("/v1/sessions", {"session_id": "call-1", "idle_timeout": 0})
ask("/v1/sessions/call-1/events", [{"type": "asr", "turn_id": 1, "text": "Hello.", "final": True, "ts": 1}])
"""
READ = """
print(ask("/v1/sessions/call-1/history?fields=standard")["contents"][0]["content"])
"""


class Failed(Exception):
    """A command that failed; the text is what it said."""


def told(*command: str) -> str:
    """What a command writes. Raises `Failed`."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise Failed(f"{shlex.join(command)[:200]} exits with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def program(script: str, port: int = PORT) -> str:
    """A program that asks the service, which listens there."""
    return ASK % port + script


def instructions(name: str) -> list[str]:
    """The arguments of all instructions of this name, each on one line."""
    return re.findall(rf"^{name} (.*)$", CONTAINER.replace("\\\n", " "), re.MULTILINE)


# With a builder


def working_builder() -> str | None:
    """A program that can build images here."""
    found = (name for name in BUILDERS if shutil.which(name))
    return next((name for name in found if not subprocess.run([name, "info"], capture_output=True).returncode), None)


def build_and_start(builder: str) -> str:
    """What the second container says of the call that the first one has taken."""
    name = f"voicemem-{uuid.uuid4().hex[:8]}"
    python = str(Path(json.loads(instruction("ENTRYPOINT"))[0]).with_name("python"))
    told(builder, "build", "-f", "deploy/Containerfile", "-t", name, ".")
    try:
        said = ""
        for script in (TAKE, READ):
            key = ("-e", f"VOICEMEM_ADMIN_KEY={ADMIN_KEY}")
            told(builder, "run", "-d", "--name", name, "-v", f"{name}:{instruction('VOLUME')}", *key, name)
            said = told(builder, "exec", name, python, "-c", program(script))
            told(builder, "stop", "--time", "30", name)
            if told(builder, "inspect", "-f", "{{.State.ExitCode}}", name).strip() != "0":
                raise Failed(told(builder, "logs", name))
            told(builder, "rm", name)
        return said
    finally:
        for ending in (["rm", "-f", name], ["volume", "rm", name], ["rmi", "-f", name]):
            subprocess.run([builder, *ending], capture_output=True)


# Step by step

LAYERED = """
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs {layer}
mkdir {layer}/changes {layer}/work {layer}/merged
mount -t overlay overlay -o lowerdir=/,upperdir={layer}/changes,workdir={layer}/work {layer}/merged
mount --rbind /dev {layer}/merged/dev
mount -t proc proc {layer}/merged/proc
mkdir -p {layer}/merged{folder}
{copies}
chmod a+x {parents}
exec chroot {layer}/merged /bin/sh -euc {script}
"""
STARTED = """
cd {workdir}
{as_user} {command} > /tmp/log 2>&1 &
{as_user} {python} -c {script} || {{ cat /tmp/log; exit 1; }}
kill -TERM $!
wait $! || {{ cat /tmp/log; exit 1; }}
"""


def in_clean_root() -> str:
    """The same in a mount namespace of its own, so that nothing stays."""
    folder, _ = instructions("WORKDIR")
    port, ingest = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="voicemem-image-") as layer:
        base = Path(sys.base_prefix)  # may be where only root may look
        script = [f"cd {folder}", *instructions("RUN"), *(started(one, port, ingest) for one in (TAKE, READ))]
        setup = LAYERED.format(
            layer=layer,
            folder=folder,
            copies="\n".join(copies(Path(f"{layer}/merged{folder}"))),
            parents=" ".join(f"{layer}/merged{path}" for path in (base, *base.parents)),
            script=shlex.quote("\n".join(script)),
        )
        return told("unshare", "--mount", "sh", "-c", setup)


def copies(folder: Path) -> list[str]:
    """Commands that copy what the Containerfile does from the project."""
    own = [line.split() for line in instructions("COPY") if "--from" not in line]
    return [f"cp -r {' '.join(names)} {folder / to}" for *names, to in own]


def started(script: str, port: int, ingest: int) -> str:
    """Commands that start the service as the image does, run a program beside it, and stop it."""
    user, group = instruction("USER").split(":")
    dropped = f"setpriv --reuid {user} --regid {group} --clear-groups"
    others = {"VOICEMEM_REST": f"0.0.0.0:{port}", "VOICEMEM_INGEST": f"0.0.0.0:{ingest}"}
    given = dict(re.findall(r"(\w+)=(\S+)", " ".join(instructions("ENV")))) | others
    environment = shlex.join(f"{name}={value}" for name, value in given.items())
    entry = json.loads(instruction("ENTRYPOINT"))
    return STARTED.format(
        workdir=instruction("WORKDIR"),
        as_user=f"{dropped} env -i VOICEMEM_ADMIN_KEY={ADMIN_KEY} {environment}",
        command=shlex.join([*entry, *json.loads(instruction("CMD"))]),
        python=Path(entry[0]).with_name("python"),
        script=shlex.quote(program(script, port)),
    )


def main() -> int:
    builder = working_builder()
    try:
        said = in_clean_root() if builder is None else build_and_start(builder)
    except Failed as failed:
        sys.stderr.write(f"{failed}\n")
        return 1
    right = said.strip().splitlines()[-1:] == ["Hello."]
    where = "in a clean root" if builder is None else f"by {builder}"
    sys.stdout.write(f"| the image, {where} | {'passed' if right else 'FAILED'} | it keeps a call over a restart |\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
