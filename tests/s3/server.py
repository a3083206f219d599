"""A real S3-compatible server (S3Proxy on files): started, killed, and started again.

    python -m tests.s3 jars

Invariants:
- It listens on 127.0.0.1 only, and keeps each object as a file in its folder.
- It is ended by its own process id, never by name.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.kafka.broker import fetch_jars, free_ports

HERE = Path(__file__).resolve().parent
JARS = Path(os.environ.get("FOLDLOG_S3_JARS") or HERE.parent.parent / ".kafka" / "s3")
START_SECONDS = 120
IDENTITY, CREDENTIAL = "tester", "secret-of-the-tests"
BUCKET = "bucket"


def missing_programs() -> list[str]:
    """What of java and mvn is not there; mvn counts only while there is no jar."""
    wanted = ["java"] if (JARS / "complete").exists() else ["java", "mvn"]
    return [name for name in wanted if shutil.which(name) is None]


def get_jars() -> None:
    """Have Maven fetch the jar, once; about 10 s and 55 MB."""
    fetch_jars(HERE, JARS, "-DexcludeTransitive=true")


class Server:
    """One server, whose objects lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.objects = self.folder / "objects" / BUCKET
        self.objects.mkdir(parents=True)
        [self.port] = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "s3proxy.endpoint": f"http://127.0.0.1:{self.port}",
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": IDENTITY,
            "s3proxy.credential": CREDENTIAL,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": IDENTITY,
            "jclouds.credential": CREDENTIAL,
            "jclouds.filesystem.basedir": self.objects.parent,
        }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (self.folder / "settings").write_text("".join(lines))

    @property
    def environment(self) -> dict[str, str]:
        """What obstore finds it by."""
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": IDENTITY,
            "AWS_SECRET_ACCESS_KEY": CREDENTIAL,
        }

    def start(self) -> None:
        """Start it on the objects it has, and wait until it answers."""
        [jar] = JARS.glob("s3proxy-*.jar")
        java = ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        if shutil.which("setpriv"):  # it ends with the tests, however these end
            java = ["setpriv", "--pdeathsig", "KILL", *java]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*java, "-DLOG_LEVEL=warn", "-jar", jar, "--properties", self.folder / "settings"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests
            )
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                text = (self.folder / "log").read_text()[-2_000:]
                raise AssertionError(f"the S3 server did not start:\n{text}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """SIGKILL it, if it is there."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
