"""A real Apache Kafka (KRaft) from Maven jars: one broker or several, killed and started again.

    python -m tests.kafka start --brokers 3 --folder .kafka/cluster
    python -m tests.kafka stop --folder .kafka/cluster

Invariants:
- Nothing outside the cluster's folder and the jars' folder is touched; every port is on 127.0.0.1.
- A broker is ended by its own process id, never by name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).resolve().parent
JARS = Path(os.environ.get("FOLDLOG_KAFKA_JARS") or HERE.parent.parent / ".kafka" / "jars")
START_SECONDS, STOP_SECONDS = 120, 30
HEAP = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def missing_programs() -> list[str]:
    """What of java and mvn is not there; mvn counts only while there are no jars."""
    wanted = ["java"] if (JARS / "complete").exists() else ["java", "mvn"]
    return [name for name in wanted if shutil.which(name) is None]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among all processes that lock this file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def get_jars() -> None:
    """Have Maven fetch the jars, once; about 10 s and 55 MB."""
    fetch_jars(HERE, JARS, "-DincludeScope=runtime")


def fetch_jars(project: Path, jars: Path, option: str) -> None:
    """Have Maven fetch what a folder's pom.xml names into a folder, once."""
    with locked(jars.with_suffix(".lock")):
        if (jars / "complete").exists():
            return
        command = ["mvn", "-q", "-B", "-f", f"{project}/pom.xml", "dependency:copy-dependencies"]
        subprocess.run(
            [*command, f"-DoutputDirectory={jars}", option], check=True, stdout=subprocess.DEVNULL
        )
        (jars / "complete").touch()


def java(main: str, *arguments: object, level: str = "ERROR") -> list[str]:
    """The command line of a Java program out of the jars."""
    logging = [
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", f"-Dfoldlog.level={level}"
    ]  # fmt: skip
    return ["java", *HEAP, *logging, "-cp", f"{JARS}/*", main, *map(str, arguments)]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True, slots=True)
class Listener:
    """A further place where a broker listens, with a protocol of its own."""

    name: str
    protocol: str
    port: int

    @property
    def server(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self.port}"


class Cluster:
    """Brokers, each also a controller, whose data lie in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def ports(self) -> list[int]:
        """The ports of the brokers, in the order of their ids (from 1)."""
        found: list[int] = json.loads((self.folder / "ports.json").read_text())
        return found[: len(found) // 2]

    @property
    def bootstrap(self) -> str:
        """Where clients connect to."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def create(
        self,
        brokers: int = 1,
        port: int | None = None,
        *,
        listeners: Sequence[Listener] = (),
        settings: Mapping[str, object] = MappingProxyType({}),
        formatted: Sequence[str] = (),
    ) -> None:
        """Lay out and format an empty cluster; with ``port`` its brokers count up from there.

        ``listeners`` and ``settings`` are further ones of its only broker, ``formatted`` what the
        formatting is told besides.
        """
        assert brokers == 1 or not listeners
        get_jars()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        ports = free_ports(2 * brokers)
        if port is not None:
            ports = [port + n for n in range(brokers)] + [port + 100 + n for n in range(brokers)]
        (self.folder / "ports.json").write_text(json.dumps(ports))
        # The first byte is none that begins with a hyphen: that would be taken for an option.
        cluster_id = urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        for id in range(1, brokers + 1):
            self._settings(id, ports, listeners, settings)
            command = java("kafka.tools.StorageTool", "format", "-t", cluster_id, *formatted)
            subprocess.run(
                [*command, "-c", self._file(id, "server.properties")],
                check=True,
                stdout=subprocess.DEVNULL,
            )

    def _settings(
        self,
        id: int,
        ports: list[int],
        listeners: Sequence[Listener],
        further: Mapping[str, object],
    ) -> None:
        count = len(ports) // 2
        voters = ",".join(f"{n + 1}@127.0.0.1:{ports[count + n]}" for n in range(count))
        here, control = f"127.0.0.1:{ports[id - 1]}", f"127.0.0.1:{ports[count + id - 1]}"
        copies = min(count, 3)
        places = [f"PLAINTEXT://{here}", *(f"{each.name}://{each.server}" for each in listeners)]
        protocols = ["PLAINTEXT:PLAINTEXT", *(f"{each.name}:{each.protocol}" for each in listeners)]
        settings = {
            "process.roles": "broker,controller",
            "node.id": id,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join([*places, f"CONTROLLER://{control}"]),
            "advertised.listeners": ",".join(places),
            "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
            "log.dirs": self._file(id, "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": min(copies, 2),
            # Groups and transactions never form where these ask for more copies than brokers.
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 2,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": 1,
            # Every first assignment would wait for 3 s.
            "group.initial.rebalance.delay.ms": 0,
            "group.consumer.heartbeat.interval.ms": 1000,
            "group.consumer.min.heartbeat.interval.ms": 500,
            **further,
        }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self._file(id, "server.properties").parent.mkdir()
        self._file(id, "server.properties").write_text("".join(lines))

    def _file(self, id: int, name: str) -> Path:
        return self.folder / f"broker-{id}" / name

    def start(self, *ids: int) -> None:
        """Start brokers (all) on the data they have, and wait until they answer."""
        ids = ids or tuple(range(1, len(self.ports) + 1))
        processes = [self._start(id) for id in ids]
        for id, process in zip(ids, processes, strict=True):
            self._wait(id, process)

    def _start(self, id: int) -> subprocess.Popen[bytes]:
        settings = self._file(id, "server.properties")
        with self._file(id, "log").open("wb") as log:
            process = subprocess.Popen(
                java("kafka.Kafka", settings, level="INFO"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests
            )
        self._file(id, "pid").write_text(str(process.pid))
        self._children[id] = process
        return process

    def _wait(self, id: int, process: subprocess.Popen[bytes]) -> None:
        log, end = self._file(id, "log"), time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if b"Kafka Server started" in log.read_bytes():
                return
            if process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"broker {id} did not start:\n{log.read_text()[-2_000:]}")

    def kill(self, id: int) -> None:
        """SIGKILL one broker."""
        self._signal(id, signal.SIGKILL)
        self._await_end(id, STOP_SECONDS)

    def stop(self, *ids: int) -> None:
        """End brokers (all) as a service manager does."""
        ids = ids or tuple(range(1, len(self.ports) + 1))
        for id in ids:
            self._signal(id, signal.SIGTERM)
        for id in ids:
            self._await_end(id, STOP_SECONDS)

    def _signal(self, id: int, how: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.kill(int(self._file(id, "pid").read_text()), how)

    def _await_end(self, id: int, seconds: float) -> None:
        """Wait until a broker has ended; one that waits for others that are gone is killed."""
        file = self._file(id, "pid")
        if not file.exists():
            return
        pid, end = int(file.read_text()), time.monotonic() + seconds
        child = self._children.pop(id, None)
        while _lives(pid):
            if time.monotonic() > end:
                self._signal(id, signal.SIGKILL)
            time.sleep(0.05)
        if child is not None:
            child.wait()
        file.unlink()

    def leave(self) -> None:
        """Let the brokers outlive this process."""
        for child in self._children.values():
            child.returncode = 0

    def tool(self, main: str, *arguments: object, given: str = "") -> str:
        """What one of the console tools prints."""
        done = subprocess.run(
            java(main, "--bootstrap-server", self.bootstrap, *arguments),
            check=True,
            input=given,
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        return done.stdout


def _lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def keep(folder: Path, owner: int) -> None:
    """Run one broker for as long as the process ``owner`` lives, then remove its folder."""
    cluster = Cluster(folder / "cluster")
    cluster.create()
    try:
        cluster.start()
        (folder / "ready").write_text(cluster.bootstrap)
        while _lives(owner):
            time.sleep(0.3)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
