"""One worker of the soak: a process that works on whatever run there is.

    python -m tests.soak.agent HOME WORLD NAME SEED LEASE_SECONDS

Each run looks, asks a person or waits for a timer, acts twice on the outside world, and now and
then fails and is tried again. Three kinds of effects: one whose key its reconciler gives up, one
that is only looked for, and one of which nobody can tell.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import urllib.error
import urllib.parse
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

from foldlog import Engine
from foldlog.worker import Agent, CannotTell, Failed, NotDone, Retries, Succeeded, Worker

KINDS = ("voids", "looks", "blind")


class Outside:
    """The world, called over HTTP."""

    def __init__(self, folder: Path) -> None:
        self._url = f"http://127.0.0.1:{(folder / 'port').read_text()}"

    def _call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self._url + path, data, timeout=20) as answer:
            return json.loads(answer.read())

    def do(self, key: str, kind: str) -> str:
        """Have it done; NotDone if the key was given up."""
        try:
            self._call("/do", {"key": key, "kind": kind})
        except urllib.error.HTTPError as error:
            raise NotDone(f"{error.code}") from None
        return f"world:{urllib.parse.quote(key)}"

    def void(self, key: str) -> int:
        """Have a key refused from now on; how often it was done."""
        return int(self._call("/void", {"key": key}))

    def found(self, key: str) -> int:
        """How often a key was done."""
        return int(self._call(f"/found?key={urllib.parse.quote(key)}"))


def made(outside: Outside, dice: random.Random) -> Agent:
    """The agent of every run."""
    agent = Agent()
    effects = {
        kind: agent.effect(kind)(lambda effect: outside.do(effect.idempotency_key, effect.kind))
        for kind in KINDS
    }

    @effects["voids"].reconciler
    def give_up(effect: Any) -> Any:
        done = outside.void(effect.idempotency_key)
        return Succeeded("world:found") if done else Failed("world:void", key_given_up=True)

    @effects["looks"].reconciler
    def look(effect: Any) -> Any:
        done = outside.found(effect.idempotency_key)
        return Succeeded("world:found") if done else Failed("world:none")

    @effects["blind"].reconciler
    def blind(effect: Any) -> Any:
        return CannotTell("the other side keeps no list")

    def number(run: Any) -> int:
        return int(run.run_id.rpartition("_")[2])

    @agent.step
    def look_around(run: Any) -> None:
        """look what there is"""
        assert run.tool("look", lambda: number(run), step_id="look") == number(run)
        if dice.random() < 0.1:
            raise OSError("it slipped")

    @agent.step
    def ask(run: Any) -> None:
        """ask, or wait"""
        if number(run) % 3 == 0:
            assert run.wait_for_approval("go", "may I?").granted
        elif number(run) % 3 == 1:
            run.wait_for_timer("later", timedelta(seconds=1))

    @agent.step
    def act(run: Any) -> str | None:
        """act on the world"""
        kind = KINDS[number(run) % len(KINDS)]
        run.perform("first", effects[kind], "world:thing")
        if dice.random() < 0.1:
            raise OSError("it slipped")
        return str(run.perform("second", effects["voids"], "world:other"))

    return agent


def main() -> None:
    """Work until told to end."""
    home, folder, name, seed, lease = sys.argv[1:]
    logging.basicConfig(level=logging.ERROR)
    agent = made(Outside(Path(folder)), random.Random(seed))
    with Engine.open(home) as engine:
        retries = Retries(first_seconds=0.2, max_seconds=1.0, restarts=9)
        worker = Worker(engine, name, agent, lease_seconds=int(lease), retries=retries)
        worker.work()


if __name__ == "__main__":
    main()
