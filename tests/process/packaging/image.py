"""Builds the container image with podman, starts it alone, and starts deploy/compose.yaml with it.

    python -m tests.process.packaging.image

The base image is made by debootstrap under the name of the Containerfile's, and PostgreSQL and Caddy are Debian's under
the names of the Compose file's, all in a storage of their own: no registry is asked, and no image of this machine
changes. It needs root, namespaces and packages of Debian; where one is missing it prints that it was skipped, and why.
It exits with 1 unless the image adds at most 100 MB to its base, keeps a call over a restart and stops on SIGTERM, and
a call through Compose's Caddy outlives a node.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.support.deploy_files import CONTAINER, NODES, instruction
from tests.support.needs import needs
from tests.support.paths import DEPLOY, ROOT
from tests.support.processes.ports import free_ports

LIMIT_S = 300.0
MOST_MB = 100
KEY = "only-for-this-check-with-no-other-use"
PROGRAMS = ("podman", "runc", "debootstrap", "unshare")
HELPERS = ("netavark", "aardvark-dns")
INSTALL = "apt-get install --no-install-recommends podman buildah runc debootstrap netavark aardvark-dns"
CERTIFICATES = "/etc/ssl/certs"
CONFIG = """
[network]
network_backend = "netavark"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[containers]
default_ulimits = ["nofile=8192:8192", "nproc=4096:4096"]
"""
"""Limits that may be set without the right to raise any."""
OVERRIDES = """
x-limits: &limits {ulimits: {nofile: 8192, nproc: 4096}}
services:
  postgres: *limits
  migrate: *limits
  node-a: *limits
  node-b: *limits
  caddy:
    <<: *limits
    ports: !override ["127.0.0.1:%d:443"]
"""
STAND_IN = """
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql caddy
COPY start.sh /start.sh
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin PGDATA=/var/lib/postgresql/data
ENTRYPOINT %s
"""
START_POSTGRESQL = """
set -eu
own() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
install -d -o postgres -m 0700 "$PGDATA" /run/postgresql
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  (umask 077 && printf %s "$POSTGRES_PASSWORD" > /run/password && chown postgres /run/password)
  own initdb -U "$POSTGRES_USER" --pwfile /run/password --auth-local trust --auth-host scram-sha-256
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  own pg_ctl -w -o "-c listen_addresses=''" start
  for one in /docker-entrypoint-initdb.d/*.sh; do sh "$one"; done
  own pg_ctl -w stop
fi
exec setpriv --reuid postgres --regid postgres --clear-groups postgres -c listen_addresses='*'
"""
"""The part of the official image's entrypoint that the Compose file relies on."""
STAND_INS = {
    "postgres:18": ["/bin/sh", "/start.sh"],
    "caddy:2": ["/usr/bin/caddy", "run", "--adapter", "caddyfile", "--config", "/etc/caddy/Caddyfile"],
}
ASK = f"""
import json, ssl, time, urllib.request as r
def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    for _ in range(300):
        try:
            sent = r.Request("%s" + path, data, {{"Authorization": "Bearer {KEY}"}})
            with r.urlopen(sent, timeout=5, context=ssl._create_unverified_context()) as answer:
                return json.loads(answer.read() or b"null")
        except OSError as error:
            if getattr(error, "code", 503) not in (502, 503):
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
    """A command that failed; the text is its output."""


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """The output of a command. Raises `Failed`."""
    settings = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise Failed(
            f"{shlex.join(command)[:300]} exits with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def why_skipped() -> str | None:
    """The reason why no container runs here; None if one does."""
    if os.geteuid():
        return "it needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    missing += [name for name in HELPERS if not Path("/usr/lib/podman", name).exists()]
    if missing:
        return f"{', '.join(missing)} not found; {INSTALL}"
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "there are no namespaces here"
    return None


class Engine:
    """A podman with images, containers and networks of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "containers.conf").write_text(CONFIG)
        (folder / "pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}/ca-certificates.crt\n")
        self.env = {"CONTAINERS_CONF": str(folder / "containers.conf"), "BUILDAH_ISOLATION": "chroot"}
        places = {"--root": "storage", "--runroot": "run", "--tmpdir": "tmp", "--network-config-dir": "networks"}
        self.command = ["podman", *(word for flag, name in places.items() for word in (flag, str(folder / name)))]

    def podman(self, *arguments: str) -> str:
        return run(*self.command, *arguments, env=self.env)

    def make_base(self) -> None:
        """Make a Debian with Python under the name of the Containerfile's base image."""
        root = self.folder / "base"
        packages = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", packages, "bookworm", str(root))
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        run("tar", "-C", str(root), "-cf", str(self.folder / "base.tar"), ".")
        (name,) = set(re.findall(r"^FROM (\S+)", CONTAINER, re.MULTILINE))
        self.podman("import", str(self.folder / "base.tar"), f"docker.io/library/{name}")
        (self.folder / "base.tar").unlink()
        shutil.rmtree(root)

    def build(self, name: str, file: Path, folder: Path, *mounts: str) -> None:
        volumes = [word for mount in mounts for word in ("-v", f"{mount}:ro")]
        self.podman("build", "--format", "docker", "--network=host", *volumes, "-f", str(file), "-t", name, str(folder))

    def build_stand_in(self, name: str, entrypoint: list[str]) -> None:
        """Build Debian's PostgreSQL and Caddy as an image of the Compose file; the second one comes from the cache."""
        folder = self.folder / "stand-in"
        folder.mkdir(exist_ok=True)
        (folder / "start.sh").write_text(START_POSTGRESQL)
        file = folder / f"Containerfile.{name.partition(':')[0]}"
        file.write_text(STAND_IN % json.dumps(entrypoint))
        self.build(f"docker.io/library/{name}", file, folder)

    def build_all(self) -> None:
        self.make_base()
        with ThreadPoolExecutor(2) as pool:
            mounts = (f"{CERTIFICATES}:{CERTIFICATES}", f"{self.folder}/pip.conf:/etc/pip.conf")
            own = pool.submit(self.build, "voicemem", DEPLOY / "Containerfile", ROOT, *mounts)
            for name, entrypoint in STAND_INS.items():
                self.build_stand_in(name, entrypoint)
            own.result()

    def size_mb(self, image: str) -> float:
        """The size of an image in MB, as it is listed."""
        return int(self.podman("image", "inspect", "-f", "{{.Size}}", image)) / 1e6

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The API of Docker, for Compose, and health checks, which podman leaves to systemd."""
        address = f"unix://{self.folder}/podman.sock"
        stopping = threading.Event()

        def check_health() -> None:
            while not stopping.wait(0.5):
                for container in self.podman("ps", "-q").split():
                    subprocess.run(
                        [*self.command, "healthcheck", "run", container],
                        env={**os.environ, **self.env},
                        capture_output=True,
                    )

        serve = [*self.command, "system", "service", "--time", "0", address]
        with subprocess.Popen(serve, env={**os.environ, **self.env}, stderr=subprocess.DEVNULL) as service:
            checking = threading.Thread(target=check_health)
            checking.start()
            try:
                yield address
            finally:
                stopping.set()
                checking.join()
                service.terminate()


def check_image(engine: Engine) -> str:
    """Start the image twice on one volume: the second container has the call that the first one took."""
    added = engine.size_mb("voicemem") - engine.size_mb("python:3.11-slim")
    if added > MOST_MB:
        raise Failed(f"the image adds {added:.0f} MB to its base; the most is {MOST_MB}")
    python = str(Path(json.loads(instruction("ENTRYPOINT"))[0]).with_name("python"))
    for script in (TAKE, READ):
        options = ("--network=none", "-v", f"calls:{instruction('VOLUME')}", "-e", f"VOICEMEM_ADMIN_KEY={KEY}")
        engine.podman("run", "-d", "--name", "alone", *options, "voicemem")
        answer = engine.podman("exec", "alone", python, "-c", ASK % "http://127.0.0.1:8080" + script)
        engine.podman("healthcheck", "run", "alone")
        engine.podman("stop", "--time", "30", "alone")
        if engine.podman("inspect", "-f", "{{.State.ExitCode}}", "alone").strip() != "0":
            raise Failed(engine.podman("logs", "alone"))
        engine.podman("rm", "alone")
    if answer.strip() != "Hello.":
        raise Failed(f"the second container answers {answer!r}")
    return f"{added:.0f} MB beside its base; it keeps a call over a restart"


def check_compose(engine: Engine) -> str:
    """Start the Compose file: a call through Caddy is still there when one of the two nodes is not."""
    folder, (port,) = engine.folder / "deploy", free_ports(1)
    shutil.copytree(DEPLOY, folder)
    example = (folder / "compose.env.example").read_text().replace("SITE=memory.example", "SITE=localhost")
    (folder / ".env").write_text(re.sub(r"^([A-Z_]+)=$", rf"\1={KEY}", example, flags=re.MULTILINE))
    (folder / "overrides.yaml").write_text(OVERRIDES % int(port))
    files = ("-f", str(folder / "compose.yaml"), "-f", str(folder / "overrides.yaml"))
    with engine.serving() as address:

        def compose(*arguments: str) -> str:
            return run(needs("docker-compose"), *files, *arguments, env={"DOCKER_HOST": address})

        try:
            compose("up", "-d", "--wait", "--no-build", "--pull", "never")
            ask = ASK % f"https://localhost:{port}"
            run(sys.executable, "-c", ask + TAKE)
            compose("kill", NODES[0])
            answer = run(sys.executable, "-c", ask + READ)
        finally:
            compose("down", "-v")
    if answer.strip() != "Hello.":
        raise Failed(f"the node that is left answers {answer!r}")
    return "a call outlives a node, behind Caddy and on PostgreSQL"


def main() -> int:
    reason = why_skipped()
    if reason is not None:
        sys.stdout.write(f"| the image | skipped | {reason} |\n")
        return 0
    right = True
    with tempfile.TemporaryDirectory(prefix="voicemem-image-", ignore_cleanup_errors=True) as folder:
        engine = Engine(Path(folder))
        try:
            begun = time.monotonic()
            engine.build_all()
            for name, check in (("the image", check_image), ("Compose", check_compose)):
                result = check(engine)
                sys.stdout.write(f"| {name} | passed | {result} | {time.monotonic() - begun:.0f} s |\n")
        except Failed as failed:
            sys.stdout.write(f"| the image | FAILED | {failed} |\n")
            right = False
        finally:
            subprocess.run([*engine.command, "rm", "-fa"], env={**os.environ, **engine.env}, capture_output=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
