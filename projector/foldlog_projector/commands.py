"""The projector's commands, found by the command line through the entry points foldlog.commands.

Invariants:
- Imports nothing heavy: `foldlog --help` loads this module to list its commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from foldlog.cli import options, output
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import Progress, counted

if TYPE_CHECKING:
    from pathlib import Path

    from foldlog.log.base import Log

Protocol = Literal["classic", "consumer"]


@command(
    "project",
    "foldlog project",
    "foldlog project --once",
    "foldlog project --follow --json",
    "foldlog project --health",
    "foldlog project --log kafka://broker-1:9092/foldlog --workers 4",
)
@click.option("--once", is_flag=True, help="Until every proposal is decided, then end.")
@click.option("--follow", is_flag=True, help="Fold along with the projector and decide nothing.")
@click.option("--health", is_flag=True, help="Say whether what waits is being decided; 6 if not.")
@click.option("--workers", type=click.IntRange(1, 256), metavar="N",
              help="With --log: so many processes under a supervisor. [1]")  # fmt: skip
@click.option("--group-protocol", "protocol", type=click.Choice(["classic", "consumer"]),
              default="classic", show_default=True, metavar="P",
              help="With --log: the group's protocol; consumer is the one of KIP-848.")  # fmt: skip
@click.option("--metrics", metavar="HOST:PORT", callback=lambda ctx, param, value: _address(value),
              help="With --workers: numbers for Prometheus at /metrics there.")  # fmt: skip
@options.snapshots_option
@click.option("--worker", type=click.IntRange(1, 256), metavar="K", hidden=True,
              help="Which of the supervisor's workers this is.")  # fmt: skip
@pass_settings
def project(
    settings: Settings,
    once: bool,
    follow: bool,
    health: bool,
    workers: int | None,
    protocol: Protocol,
    metrics: tuple[str, int] | None,
    worker: int | None,
) -> int:
    """Run the projector: decide what is proposed, until SIGTERM or Ctrl-C.

    Logs JSON lines to stderr. Workers go on meanwhile: they hand in proposals and read, and a
    worker that holds the projection gives it up to the daemon.

    --follow never decides: it folds what is decided, in memory, from the start of the log, with
    every check that the projector makes, and prints how far each partition is whenever that
    moves. A home has one projection, which whoever holds it writes; a follower beside it changes
    nothing, needs no holder, and ends with 5 at the first record that does not fit.

    With --log projectors share the partitions, on as many machines as there are: each is a member
    of the group PREFIX.projector, and has its stores in its own home.
    """
    if once + follow + health > 1:
        raise click.UsageError("choose one of --once, --follow and --health")
    url = options.log_url(settings)
    if url is not None:
        home = options.find_home(settings)
        if workers is not None and not (once or follow or health):
            return _supervise(settings, url, home, workers, protocol, metrics)
        if metrics is not None:
            raise click.UsageError("--metrics goes with --workers: the supervisor serves them")
        plan = {"url": url, "home": home, "protocol": protocol, "worker": worker or 1}
        plan["snapshots"] = options.snapshot_settings(settings)
        return _on_kafka(settings, plan, once=once, follow=follow, health=health)
    if workers is not None or metrics is not None:
        raise click.UsageError(
            "--workers and --metrics go with --log: one process turns an embedded log"
        )
    if health:
        return _health(settings)
    if follow:
        return _follow(settings)
    return _once(settings) if once else _daemon(settings)


def _once(settings: Settings) -> int:
    with options.opened(settings) as engine, Progress("decided records") as bar:
        decided = engine.project(bar)
    _say_once(settings, decided)
    return 0


def _say_once(settings: Settings, decided: int) -> None:
    if settings.json:
        output.say_json({"decided": decided})
    else:
        output.say(f"decided {counted(decided, 'proposal')}; caught up")


def _on_kafka(
    settings: Settings, plan: dict[str, Any], *, once: bool, follow: bool, health: bool
) -> int:
    if follow:
        from foldlog.reaching import open_log

        log = open_log(plan["url"])
        try:
            _say_followed(settings, log)
        finally:
            log.close()
        return 0
    if health:
        from foldlog_projector.health import health_of_members

        return _say_health(settings, health_of_members(plan["url"], plan["home"]))
    from foldlog_projector.daemon import log_to
    from foldlog_projector.serving import run_member, run_once

    if once:
        decided = run_once(plan)
        _say_once(settings, decided)
        return 0
    log_to()
    run_member(plan)
    return 0


def _supervise(
    settings: Settings,
    url: str,
    home: Path,
    workers: int,
    protocol: str,
    metrics: tuple[str, int] | None,
) -> int:
    from foldlog_projector.daemon import log_to
    from foldlog_projector.health import health_of_members
    from foldlog_projector.metrics import Metrics
    from foldlog_projector.supervisor import Supervisor

    log_to()
    given = ["--log", url, "--home", str(home), "--group-protocol", protocol]
    if settings.snapshots is not None:
        given += ["--snapshots", settings.snapshots]
    supervisor = Supervisor(["project", *given], workers)
    served = None
    if metrics is not None:
        served = Metrics(metrics, lambda: health_of_members(url, home), supervisor.numbers)
    try:
        supervisor.run()
    finally:
        if served is not None:
            served.close()
    return 0


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _daemon(settings: Settings) -> int:
    options.refuse_log(settings)
    home = options.find_home(settings)
    from foldlog_projector.daemon import log_to, run_daemon

    log_to()
    run_daemon(home, options.snapshot_settings(settings))
    return 0


def _follow(settings: Settings) -> int:
    with options.looked_at(settings) as onlooker:
        _say_followed(settings, onlooker.home.log)
    return 0


def _say_followed(settings: Settings, log: Log) -> None:
    from foldlog_projector.follower import follow

    for row in follow(log):
        if settings.json:
            output.say_json(row)
        else:
            head, lag = row["head"][:12], counted(row["lag"], "proposal")
            output.say(f"partition {row['partition']}: sequence {row['sequence']}, head {head},"
                       f" {lag} wait")  # fmt: skip
        output.flush()


def _health(settings: Settings) -> int:
    options.refuse_log(settings)
    home = options.find_home(settings)
    from foldlog_projector.health import health

    return _say_health(settings, health(home))


def _say_health(settings: Settings, found: dict[str, Any]) -> int:
    if settings.json:
        output.say_json(found)
    else:
        holder = "nobody" if found["holder"] is None else f"process {found['holder']}"
        state = "healthy" if found["healthy"] else "not healthy"
        output.say(
            f"{state}: {holder} {found['message']}; {counted(found['lag'], 'proposal')} wait"
        )
        if found["alarms"]:
            alarms = ", ".join(f"{count} {code}" for code, count in found["alarms"].items())
            output.say(f"alarms: {alarms}")
    return 0 if found["healthy"] else 6
