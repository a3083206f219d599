"""What doctor finds in a log on Kafka and in the home of a projector, fault by fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, errors
from foldlog.doctor import exit_code
from foldlog.doctor_kafka import examine_connected
from foldlog.log.kafka.address import parse_url
from foldlog.reaching import create_log
from foldlog.runtime import SECOND, wall_clock
from tests.kafka.projectors import projecting
from tests.kafka.test_topics import alter, delete
from tests.workers import FOLDLOG, environment, until

NewUrl = Callable[[], str]


def found(url: str, home: Path, *, later: int = 0, settings: Any = None) -> list[Any]:
    """What doctor says, so many seconds later."""
    return examine_connected(url, home, lambda: wall_clock() + later * SECOND, settings)


def wrong(findings: list[Any]) -> list[tuple[str, int]]:
    """What is not ok: which check, and what doctor ends with because of it."""
    return [(each.check, each.exit) for each in findings if not each.ok]


def test_a_log_that_is_well(new_url: NewUrl, tmp_path: Path) -> None:
    """Topics, copies, rights, group, each partition and this home's projector are looked at, and
    the command says so."""
    url = new_url()
    create_log(url, 2)
    home = tmp_path / "home"
    with projecting(url, home) as projector:
        projector.await_turning(0, 1)
        with Engine.connect(url, home=tmp_path / "worker") as engine:
            engine.start("run_1", goal="x", timeout=60)
        until(lambda: "turns" not in dict(wrong(found(url, home))))
        findings = found(url, home)
        checks = {each.check for each in findings}
        assert checks == {
            "versions", "disk", "projector", "log", "copies", "rights", "group", "projection",
            "turns",
        }  # fmt: skip
        assert wrong(findings) == []
        assert exit_code(findings) == 0
        [group] = [each for each in findings if each.check == "group"]
        assert "1 projectors: " in group.what
        assert "[0, 1]" in group.what
        assert "Read" in next(each.what for each in findings if each.check == "rights")
        told = subprocess.run(
            [*FOLDLOG, "doctor", "--json", "--log", url, "--home", str(home)],
            capture_output=True, text=True, env=environment(), timeout=60,
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
        said = [json.loads(line) for line in told.stdout.splitlines()]
        assert [each["check"] for each in said] == [each.check for each in findings]
        assert [each["ok"] for each in said] == [True] * len(said)


def test_nobody_decides(new_url: NewUrl, tmp_path: Path) -> None:
    """Without a projector doctor says what to type, and how long the first proposal has waited."""
    url = new_url()
    create_log(url, 1)
    with Engine.connect(url, home=tmp_path / "home") as engine:
        assert wrong(found(url, tmp_path / "home")) == [("group", 6)]
        with pytest.raises(errors.OutcomeUnknown):
            engine.start("run_1", goal="x", timeout=0)
    until(lambda: ("turns", 6) in wrong(found(url, tmp_path / "home", later=60)))
    findings = found(url, tmp_path / "home", later=60)
    assert exit_code(findings) == 6
    [turns] = [each for each in findings if each.check == "turns"]
    assert "nobody decides it, and a proposal waits for" in turns.what
    assert turns.remedy == f"foldlog project --log {url}"


def test_a_projector_that_is_stopped(new_url: NewUrl, tmp_path: Path) -> None:
    """A projector of this home that was stopped is named, with what lets it go on."""
    url = new_url()
    create_log(url, 1)
    home = tmp_path / "home"
    with projecting(url, home) as projector:
        projector.await_turning(0)
        projector.send(signal.SIGSTOP)
        [stopped] = [each for each in found(url, home) if each.check == "projector"]
        assert (stopped.ok, stopped.exit) == (False, 6)
        assert f"kill -CONT {projector.process.pid}" in stopped.remedy
    [gone] = [each for each in found(url, home) if each.check == "projector"]
    assert (gone.ok, gone.what) == (True, "not running")


def test_a_topic_that_must_not_be_used(new_url: NewUrl, tmp_path: Path) -> None:
    """What every start refuses is broken, with the command that mends it; no log at all is
    HomeMissing, brokers that do not answer an outage."""
    url = new_url()
    create_log(url, 1)
    address = parse_url(url)
    assert ("log", 5) not in wrong(found(url, tmp_path / "home"))
    alter(address, address.events, "retention.ms", "1000")
    until(lambda: ("log", 5) in wrong(found(url, tmp_path / "home")))
    [log] = [each for each in found(url, tmp_path / "home") if each.check == "log"]
    assert "kafka-configs.sh" in log.what
    delete(address, address.events, address.proposals)
    with pytest.raises(errors.HomeMissing):
        found(url, tmp_path / "home")
    assert wrong(found("kafka://127.0.0.1:9/nobody", tmp_path / "another")) == [("log", 6)]


def test_settings_that_others_may_read(new_url: NewUrl, tmp_path: Path) -> None:
    """A settings file with rights for others is told, with the command that mends it."""
    url = new_url()
    create_log(url, 1)
    file = tmp_path / "client.properties"
    file.write_text("client.rack=one\n")
    for mode, remedy in ((0o644, f"chmod 600 {file}"), (0o600, None)):
        os.chmod(file, mode)
        findings = found(url, tmp_path / "home", settings=file)
        [told] = [each for each in findings if each.check == "settings"]
        assert (told.ok, told.remedy) == (True, remedy)
