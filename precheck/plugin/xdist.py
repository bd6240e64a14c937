"""Sends data from xdist's workers, which collect the tests, to the controller, which writes the summary.

Registered only if xdist is installed, since pluggy refuses unknown hooks.
"""

from __future__ import annotations

from typing import Any

from precheck.plugin.results import Results

OUTPUT = "precheck"


def is_worker(config: Any) -> bool:
    return hasattr(config, "workerinput")


def hand_over(config: Any, results: Results) -> None:
    """Sends a worker's collection at the end of its session. Only the first worker does, since all collect the same tests."""
    if config.workerinput["workerid"] == "gw0":
        config.workeroutput[OUTPUT] = results.collection()


class Controller:
    """The hooks that xdist calls in the controller."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error:
            self.results.partial.append(f"xdist worker {node.gateway.id} crashed")
        found = getattr(node, "workeroutput", {}).get(OUTPUT)
        if found:
            self.results.take_over(found)
