"""Two ranks of which one does not watch, raises, dies or fails: run by test_distributed, each in ranks of its own."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distributed_loops import STEPS, parallel, same, train, weights
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import precheck
from precheck.observe.shadow.distributed import ranks

ranks.PATIENCE = 5.0  # what waits, waits as well when it is short; two busy processes meet within it


def first() -> bool:
    return os.environ["RANK"] == "0"


def report_of(block: Callable[[], object], *, watching: bool = True, precision: str | None = None) -> dict[str, Any]:
    raised, report = "", precheck.Report()
    try:
        with precheck.watch(precision=precision) if watching else contextlib.nullcontext(report) as report:
            block()
    except ValueError as error:
        raised = f"{type(error).__name__}: {error}"
    findings = [{"text": str(each), "rule": each.rule, "severity": each.severity, "ranks": list(each.ranks)} for each in report.findings]
    return {"findings": findings, "facts": report.facts, "raised": raised}


def trained(**given: Any) -> dict[str, Any]:
    """A training that is watched, beside the same unwatched."""
    plain, models = weights(train(parallel(), autocast=True)), []
    told = report_of(lambda: models.append(train(parallel(), autocast=True)), **given)
    return told | {"unchanged": all(same(one, other) for one, other in zip(plain, weights(models[0]), strict=True))}


def alone() -> dict[str, Any]:
    return trained(watching=first())


def raises() -> dict[str, Any]:
    def block() -> None:
        dist.all_reduce(torch.ones(8).bfloat16())
        if not first():
            torch.full((8,), 12.0).half().exp().sum().item()
            raise ValueError("as a program's do")

    return report_of(block)


def dies() -> dict[str, Any]:
    def block() -> None:
        dist.all_reduce(torch.ones(8).bfloat16())
        if not first():
            os._exit(0)

    return report_of(block)


def loses() -> dict[str, Any]:
    def loss(output: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        for mode in _get_current_dispatch_mode_stack():
            if not first() and len(calls) == STEPS + 2:  # in the second step of the watched training
                mode.collectives.ranks.lose("a shadow that failed")
        return output.float().square().mean()

    calls = []
    plain, models = weights(train(parallel(), loss=loss, autocast=True)), []
    told = report_of(lambda: models.append(train(parallel(), loss=loss, autocast=True)))
    return told | {"unchanged": all(same(one, other) for one, other in zip(plain, weights(models[0]), strict=True))}


def differ() -> dict[str, Any]:
    return trained(precision="32-true" if first() else None)


def again() -> dict[str, Any]:
    return {"every": [report_of(lambda: dist.all_reduce(torch.ones(8).bfloat16()))["facts"]["ranks"] for _ in range(5)]}


def crossed() -> dict[str, Any]:
    """What would never end if each waited for its reduction at once: rank 1 starts its own only after a message that rank 0 sends later."""

    def block() -> None:
        numbers, message = torch.full((4,), 1.0 + dist.get_rank()).bfloat16(), torch.full((4,), 3.0).bfloat16()
        if first():
            work = dist.all_reduce(numbers, async_op=True)
            dist.send(message, 1)
            work.wait()
        else:
            dist.recv(message, 0)
            dist.all_reduce(numbers)
        sums.extend(numbers.tolist())

    sums: list[float] = []
    return report_of(block) | {"unchanged": sums == [3.0] * 4}


def leaves() -> dict[str, Any]:
    def block() -> None:
        dist.all_reduce(torch.ones(8).bfloat16())
        dist.destroy_process_group()

    return report_of(block) | {"left": not dist.is_initialized()}


def begins() -> dict[str, Any]:
    def block() -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(8).bfloat16())

    return report_of(block)


CASES = {case.__name__: case for case in (alone, raises, dies, loses, differ, again, crossed, leaves, begins)}


def main(folder: Path, names: list[str]) -> None:
    """One case."""
    (name,) = names
    if name != "begins":
        dist.init_process_group("gloo")
    (folder / f"{name}.{os.environ['RANK']}.json").write_text(json.dumps(CASES[name]()), encoding="utf8")
    if dist.is_initialized() and name != "dies":
        dist.barrier()
        dist.destroy_process_group()
