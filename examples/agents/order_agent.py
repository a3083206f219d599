"""An agent that orders from a warehouse, dies with the answer under way, and does not order twice.

    python warehouse.py . &          # the outside world, with a ledger of its own
    python order_agent.py . --die    # sends the order, and dies before it hears the answer
    python order_agent.py .          # asks the warehouse what became of it, and goes on

The first worker's lease runs for two seconds more; then the second one has the run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

from foldlog import Engine
from foldlog.worker import Agent, Claim, EffectCall, Failed, Succeeded, Worker

folder, dies = Path(sys.argv[1]), "--die" in sys.argv
agent = Agent()


def call(path: str, body: Any = None) -> Any:
    """Ask the warehouse."""
    url = f"http://127.0.0.1:{(folder / 'port').read_text()}{path}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=10) as answer:
        return json.loads(answer.read())


@agent.effect("order")
def order(effect: EffectCall, item: str) -> str:
    """Order once; recorded as intended before this is called, and what it returns after."""
    found = call("/orders", {"key": effect.idempotency_key, "item": item})
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"warehouse:order/{found['order']}"


@order.reconciler
def ask(effect: EffectCall) -> Succeeded | Failed:
    """What became of an order: first give its key up, so that a late one cannot arrive."""
    found = call("/void", {"key": effect.idempotency_key})
    print(f"asked about {effect.id}: the warehouse has {len(found)}")
    evidence = f"warehouse:orders?key={effect.idempotency_key}"
    return Succeeded(evidence) if found else Failed(evidence, key_given_up=True)


@agent.step
def buy(run: Claim) -> str | None:
    """order the spare part"""
    return run.perform("order-1", order, "warehouse:orders", "pump 7")


def main() -> None:
    """Work on the run until it is finished."""
    name = "buyer-1" if dies else "buyer-2"
    with Engine.open(folder / ".foldlog", create=True, author="user:ada") as engine:
        run = engine.start("order-1", goal="Order a pump", timeout=30)
        with Worker(engine, name, agent, lease_seconds=2).claim(timeout=30) as claim:
            while True:  # until the run waits or ends, which leaves the block
                claim.go_on()
        state = run.state()
        assert state is not None
        effects = [f"{effect.id} {effect.status} {effect.outcome}" for effect in state.effects]
        print(f"{state.run_id}: {state.status} {state.result}; {', '.join(effects)}")


if __name__ == "__main__":
    main()
