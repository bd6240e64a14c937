"""`python suites/architectures/sweep.py`: what `measure` says of healthy code that its authors never saw. Each error is looked at by hand.

`--lines FILE` writes a line of JSON for each run and goes on where it stopped; parts of names choose among the architectures. `--train 40` trains
each for so many steps in float32 first, with dropout, and measures two steps of AdamW: attention is no longer uniform then, and logits are large.
`--watch 5` watches a training loop of so many steps (`loop.py`) instead of a measurement. `--bodies` takes further tables of transformers,
`--seed` other weights and inputs.
"""

from __future__ import annotations

import argparse
import collections
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from loop import loop, prepared
from tiny import Built, built, everything, losses

import precheck

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
PATIENCE = 120
"""Seconds that one run may take."""


DROPOUT, RATE = 0.1, 3e-3
"""With which an architecture is trained."""


class LateError(Exception):
    """A run takes longer than `PATIENCE`."""


def trained(given: Built, steps: int) -> None:
    """Trains a model that was built on its one batch, in float32."""
    model = given.model
    assert model is not None
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = DROPOUT
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        losses(model(**given.inputs)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    optimizer.zero_grad()


def judged(given: Built, precision: str, *, watch: int = 0, **updates: Any) -> dict[str, Any]:
    """What `measure` says of one, as a line of the record. `updates`: further arguments of `measure`. `watch`: steps of a loop that is watched."""
    begun = time.perf_counter()
    line: dict[str, Any] = {"model": given.name, "precision": precision, "errors": [], "warnings": []}
    try:
        if watch:
            report = watched(given, precision, watch)
        else:
            report = precheck.measure(given.model, given.inputs, precision=precision, loss=losses, **updates)  # type: ignore[arg-type]
        line["errors"] = [[finding.rule, finding.message] for finding in report.errors]
        line["warnings"] = [finding.rule for finding in report.findings if finding.severity == "warning"]
    except (Exception, LateError) as error:
        line["raised"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    line["seconds"] = round(time.perf_counter() - begun, 2)
    return line


def watched(given: Built, precision: str, steps: int) -> precheck.Report:
    """What `watch` says of a training loop. Weights of norms near 1 lose their updates in pure bfloat16, which is true and is left out."""
    assert given.model is not None
    model = prepared(given.model, precision)
    with precheck.watch(model, allow={"lost-update": "true in pure bfloat16"} if precision == "bf16-true" else None) as report:
        loop(model, given.inputs, precision, steps)
    return report


def _late(number: int, frame: Any) -> None:
    raise LateError


def main() -> int:
    """1 where an architecture is accused."""
    parser = argparse.ArgumentParser(prog="python suites/architectures/sweep.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of types of configurations (default: all)")
    parser.add_argument("--precision", action="append", help=f"any that `measure` knows, recipes too; default: {', '.join(PRECISIONS)}")
    parser.add_argument("--lines", type=Path, help="record, one JSON object a line")
    parser.add_argument("--train", type=int, default=0, metavar="STEPS", help="steps in float32 that each is trained for first (default: none)")
    parser.add_argument("--watch", type=int, default=0, metavar="STEPS", help="watch a training loop of so many steps instead")
    parser.add_argument("--bodies", action="store_true", help="models without a loss of their own, with inputs that they run with")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs (default: 0)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    known = {(line["model"], line["precision"]) for line in recorded(asked.lines)}
    for family, kind in everything(bodies=asked.bodies):
        if asked.names and not any(name in kind for name in asked.names):
            continue
        swept(family, kind, asked, known)
    return told(recorded(asked.lines)) if asked.lines else 0


def swept(family: str, kind: str, asked: argparse.Namespace, known: set[tuple[str, str]]) -> None:
    given = built(family, kind, asked.seed)
    if given.model is None:
        print(f"{kind:<28} {given.name}: not built: {given.why}", flush=True)
        return
    updates: dict[str, Any] = {}
    if asked.train:
        trained(given, asked.train)
        updates = {"optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=RATE / 3), "steps": 2}
    for precision in asked.precision or PRECISIONS:
        if (given.name, precision) in known:
            continue
        signal.alarm(PATIENCE)
        line = judged(built(family, kind, asked.seed) if asked.watch else given, precision, watch=asked.watch, **updates)
        signal.alarm(0)
        print(f"{kind:<28} {given.name} {precision} {line['seconds']} s {line.get('raised', line['errors'] or 'passes')}", flush=True)
        if asked.lines:
            with asked.lines.open("a", encoding="utf8") as file:
                file.write(json.dumps(line) + "\n")


def recorded(path: Path | None) -> list[dict[str, Any]]:
    return [] if path is None or not path.exists() else [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


def told(lines: list[dict[str, Any]]) -> int:
    """Prints the table; 1 where something is accused."""
    accused = [line for line in lines if line["errors"]]
    rules = collections.Counter(rule for line in accused for rule, _ in line["errors"][:1])
    raised = [line for line in lines if "raised" in line]
    models = len({line["model"] for line in lines})
    print(f"{models} architectures, {len(lines)} runs: {len(accused)} with errors {dict(rules)}, {len(raised)} not run")
    return int(bool(accused))


if __name__ == "__main__":
    sys.exit(main())
