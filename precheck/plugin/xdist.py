"""Under xdist the workers collect and the controller speaks: what each collected is handed over when it ends.

Registered only where xdist is installed, since pluggy refuses hooks that nobody specifies.
"""

from __future__ import annotations

from typing import Any

from precheck.plugin.ledger import Ledger

OUTPUT = "precheck"


def is_worker(config: Any) -> bool:
    return hasattr(config, "workerinput")


def hand_over(config: Any, ledger: Ledger) -> None:
    """On a worker, at the end of its session. All workers collect the same, so the first one speaks for them."""
    if config.workerinput["workerid"] == "gw0":
        config.workeroutput[OUTPUT] = ledger.collection()


class Controller:
    """Hooks that xdist calls in the controlling process."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error:
            self.ledger.partial.append(f"xdist worker {node.gateway.id} crashed")
        found = getattr(node, "workeroutput", {}).get(OUTPUT)
        if found:
            self.ledger.take_over(found)
