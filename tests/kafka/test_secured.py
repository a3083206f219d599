"""A broker that lets in only who proves who he is, and allows only what its ACLs allow.

Invariants:
- Each role works with exactly the rights of the page, and without any one of them it is told which.
- What is not allowed is an outage that says so: no record is skipped, no partition halts.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, errors
from foldlog.reaching import create_log
from foldlog_projector.serving import run_once
from tests.kafka.fixtures import check_programs
from tests.kafka.projectors import health, projecting
from tests.kafka.secured import Right, Secured, secured, settings_file
from tests.needs import program
from tests.workers import until

PAGE = Path(__file__).resolve().parent.parent.parent / "projector" / "KAFKA.md"
ROLES = ("init", "worker", "projector", "auditor")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The broker of these tests; a principal for each role."""
    check_programs()
    program("openssl")
    with secured(tmp_path_factory.mktemp("secured"), ROLES) as broker:
        yield broker


def rights_of(role: str, prefix: str) -> list[Right]:
    """What the page says that a role has to be allowed."""
    [line] = re.findall(rf"^\| {role}\b[^|]*\|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    places = (("topic", f"{prefix}.proposals"), ("topic", f"{prefix}.events"),
              ("group", f"{prefix}.projector"))  # fmt: skip
    return [
        (operation, kind, name)
        for words, (kind, name) in zip(line.split("|"), places, strict=True)
        for operation in re.findall(r"\w+", words)
    ]


class Log:
    """A log of its own for a test, in which each role has its rights."""

    def __init__(self, broker: Secured, *roles: str) -> None:
        self.broker = broker
        self.prefix = f"t{uuid.uuid4().hex[:12]}"
        self.url = broker.url(broker.passwords, self.prefix)
        self.plain_url = f"kafka://{broker.cluster.bootstrap}/{self.prefix}"
        create_log(self.plain_url, 1)
        for role in roles:
            broker.allow(role, rights_of(role, self.prefix))

    @contextmanager
    def without(self, role: str, right: Right) -> Iterator[None]:
        """While a role lacks one of its rights, and no other: Read and Write bring Describe."""
        operation, kind, name = right
        besides: list[Right] = []
        if operation in ("Read", "Write"):
            besides.append(("Describe", kind, name))
        self.broker.allow(role, besides)
        self.broker.forbid(role, [right])
        try:
            yield
        finally:
            self.broker.allow(role, [right])
            self.broker.forbid(role, besides)


def names_it(error: Exception, right: Right) -> bool:
    """Whether an error says which right is lacking, of what."""
    operation, kind, name = right
    return f"{operation} of {kind} {name} is not allowed" in str(error)


def until_refused(work: Callable[[], Any], right: Right) -> None:
    """Wait until something is refused for want of a right: brokers learn of it a moment later."""

    def refused() -> bool:
        try:
            work()
        except (errors.Unavailable, errors.OutcomeUnknown) as error:
            return names_it(error, right)
        return False

    until(refused, 60, 0.2)


def until_done(work: Callable[[], Any]) -> Any:
    """Wait until something is allowed; what it gives then."""
    given: list[Any] = []

    def done() -> bool:
        with contextlib.suppress(errors.Unavailable):
            given.append(work())
        return bool(given)

    until(done, 60, 0.2)
    return given[0]


def test_init_makes_a_log_with_its_rights(broker: Secured) -> None:
    """Who may create, describe and look at the topics' settings makes a log; without one of these
    he is told which."""
    settings = broker.password("init")

    def asked(lacking: int | None) -> None:
        prefix = f"t{uuid.uuid4().hex[:12]}"
        url, rights = broker.url(broker.passwords, prefix), rights_of("init", prefix)
        given = [right for number, right in enumerate(rights) if number != lacking]
        broker.allow("init", given)
        if lacking is None:
            assert until_done(lambda: create_log(url, 1, settings)) == (1, True)
        else:
            until_refused(lambda: create_log(url, 1, settings), rights[lacking])

    for lacking in (*range(len(rights_of("init", "any"))), None):
        asked(lacking)


def test_a_worker_needs_its_rights_and_no_more(broker: Secured, tmp_path: Path) -> None:
    """It proposes and hears what became of it; without one of its rights it is told which, at once,
    and what it handed in counts when it is handed in again."""
    log, settings = Log(broker, "worker"), broker.password("worker")

    def work() -> Any:
        with Engine.connect(log.url, home=tmp_path / "worker", settings=settings) as engine:
            started = engine.start("run_1", goal="x", batch_id=batch_id, timeout=60).started
            state = engine.run("run_1").state()
            assert started is not None
            assert state is not None
            return started.outcome, started.duplicate, state.revision

    batch_id = str(uuid.uuid4())
    with projecting(log.plain_url, tmp_path / "projector") as projector:
        projector.await_turning(0)
        assert until_done(work) == ("accepted", False, 1)
        for right in rights_of("worker", log.prefix):
            with log.without("worker", right):
                until_refused(work, right)
        assert until_done(work) == ("accepted", True, 1)
        assert projector.lines("halted") == projector.lines("outage") == []


def test_an_auditor_needs_its_rights_and_no_more(broker: Secured, tmp_path: Path) -> None:
    """It folds and verifies; without one of its rights it is told which; writing is refused."""
    log, settings = Log(broker, "auditor"), broker.password("auditor")

    def work() -> Any:
        with Engine.connect(log.url, home=tmp_path / "auditor", settings=settings) as engine:
            return engine.verify().ok, [row.lag for row in engine.status()]

    def write() -> Any:
        with Engine.connect(log.url, home=tmp_path / "auditor", settings=settings) as engine:
            return engine.start("run_2", goal="x", timeout=60).started

    with (
        Engine.connect(log.plain_url, home=tmp_path / "home") as engine,
        pytest.raises(errors.OutcomeUnknown),
    ):
        engine.start("run_1", goal="x", timeout=0)
    run_once({"url": log.plain_url, "home": tmp_path / "projector"})
    assert until_done(work) == (True, [0])
    for right in rights_of("auditor", log.prefix):
        with log.without("auditor", right):
            until_refused(work, right)
    with pytest.raises(errors.Unavailable) as refused:
        write()
    assert names_it(refused.value, ("Write", "topic", f"{log.prefix}.proposals"))


def test_a_projector_needs_its_rights_and_no_more(broker: Secured, tmp_path: Path) -> None:
    """It decides; without one of its rights it is told which when it starts, and nothing is taken
    for poison."""
    log, settings = Log(broker, "projector"), broker.password("projector")
    plan = {"url": log.url, "home": tmp_path / "projector", "settings": settings}
    with Engine.connect(log.plain_url, home=tmp_path / "home") as engine:
        for number, right in enumerate(rights_of("projector", log.prefix)):
            with pytest.raises(errors.OutcomeUnknown):
                engine.start(f"run_{number}", goal="x", timeout=0)
            with log.without("projector", right):
                until_refused(lambda: run_once(plan), right)
        until_done(lambda: run_once(plan))
        assert [engine.run(f"run_{n}").state() is not None for n in range(number + 1)]
        assert engine.verify().ok


@pytest.mark.parametrize(("what", "half"), [("Read", "proposals"), ("Write", "events")])
def test_a_projector_that_loses_a_right_waits_for_it(
    broker: Secured, tmp_path: Path, what: str, half: str
) -> None:
    """Taken away while it works, a right is named by log and health; given back, the projector goes
    on by itself, and decides what was proposed meanwhile."""
    log = Log(broker, "projector")
    right = (what, "topic", f"{log.prefix}.{half}")
    settings = broker.password("projector")
    home = tmp_path / "projector"
    with (
        projecting(log.url, home, settings=settings) as projector,
        Engine.connect(log.plain_url, home=tmp_path / "home") as engine,
    ):
        projector.await_turning(0)
        names = (f"run_{number}" for number in itertools.count())
        until(lambda: decided(engine, next(names)))
        with log.without("projector", right):
            # The brokers let through what was under way before they learnt of it.
            undecided = next(name for name in names if not decided(engine, name))
            until(lambda: projector.lines("outage"), 60, 0.2)
            assert "is not allowed" in projector.lines("outage")[0]["message"]

            def said() -> bool:
                code, found = health(log.plain_url, home)
                return code == 6 and found["phase"] == "waiting" and right[2] in found["message"]

            until(said, 60, 0.5)
        until(lambda: engine.run(undecided).state() is not None, 60, 0.2)
        assert projector.lines("halted") == []
        assert len(projector.lines("outage")) <= 3


def test_a_projector_needs_to_read_records_when_it_begins(broker: Secured, tmp_path: Path) -> None:
    """What it has written itself it need not read: without that right it decides on, until it is
    started again."""
    log, settings = Log(broker, "projector"), broker.password("projector")
    home, right = tmp_path / "projector", ("Read", "topic", f"{log.prefix}.events")
    with Engine.connect(log.plain_url, home=tmp_path / "home") as engine:
        with projecting(log.url, home, settings=settings) as projector:
            projector.await_turning(0)
            until(lambda: decided(engine, "run_0"))
            with log.without("projector", right):
                time.sleep(2)  # until the brokers have learnt of it
                assert decided(engine, "run_1")
            assert projector.lines("outage") == projector.lines("halted") == []
        with log.without("projector", right):
            plan = {"url": log.url, "home": home, "settings": settings}
            until_refused(lambda: run_once(plan), right)


def decided(engine: Engine, run_id: str) -> bool:
    """Whether a run that is proposed now begins within a moment."""
    try:
        return engine.start(run_id, goal="x", timeout=2).started is not None
    except errors.OutcomeUnknown:
        return False


def test_a_password_or_certificate_that_is_wrong_is_told(broker: Secured, tmp_path: Path) -> None:
    """Who is not let in hears so, and what to look at: not that the brokers are away."""
    log = Log(broker, "worker")
    wrong = [
        broker.password("worker", "wrong"),
        broker.password("worker", "wrong", mechanism="PLAIN"),
        {**broker.password("worker"), "ssl.ca.location": str(broker.certificates.made("x")[0])},
    ]
    for settings in wrong:
        with pytest.raises(errors.Unavailable, match="do not let this client in") as told:
            Engine.connect(log.url, home=tmp_path / "home", settings=settings)
        assert "open-sesame" not in str(told.value)
        assert "check the client's settings" in str(told.value)


def test_a_plain_password_over_tls(broker: Secured, tmp_path: Path) -> None:
    """SASL PLAIN lets a principal in with its password, and with the rights that it has."""
    log = Log(broker, "auditor")
    settings = broker.password("auditor", mechanism="PLAIN")
    with Engine.connect(log.url, home=tmp_path / "home", settings=settings) as engine:
        assert engine.verify().ok
    other = broker.password("worker", mechanism="PLAIN")
    with pytest.raises(errors.Unavailable, match="is not allowed to this principal"):
        Engine.connect(log.url, home=tmp_path / "other", settings=other)


def test_a_certificate_of_ones_own(broker: Secured, tmp_path: Path) -> None:
    """A settings file with a certificate connects as the name that it is for."""
    log = Log(broker, "auditor")
    url = broker.url(broker.by_certificate, log.prefix)
    file = settings_file(tmp_path / "auditor.properties", broker.certificate("auditor"))
    with Engine.connect(url, home=tmp_path / "home", settings=file) as engine:
        assert engine.verify().ok
    other = broker.certificate("worker")
    with pytest.raises(errors.Unavailable, match="is not allowed to this principal"):
        Engine.connect(url, home=tmp_path / "other", settings=other)


def test_tokens_pass_through(broker: Secured, tmp_path: Path) -> None:
    """OAUTHBEARER works with the client's own settings, and with a callback of the caller's."""
    log = Log(broker, "auditor")
    url = broker.url(broker.tokens, log.prefix)
    shared = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    asked = []

    def token(config: str) -> tuple[str, float]:
        asked.append(config)
        return unsecured_token("auditor")

    ways: list[dict[str, Any]] = [
        {"enable.sasl.oauthbearer.unsecure.jwt": "true",
         "sasl.oauthbearer.config": "principal=auditor"},
        {"oauth_cb": token, "sasl.oauthbearer.config": "the caller's"},
    ]  # fmt: skip
    for way in ways:
        with Engine.connect(url, home=tmp_path / "home", settings={**shared, **way}) as engine:
            assert engine.verify().ok
    assert "the caller's" in asked


def unsecured_token(name: str) -> tuple[str, float]:
    """A token that says who somebody is and is signed by nobody, and when it ends."""
    now = time.time()
    claims = {"sub": name, "iat": now, "exp": now + 600}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    encoded = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, ""]), now + 600
