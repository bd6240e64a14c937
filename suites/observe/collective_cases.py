"""Collectives of two ranks under a shadow, beside the same in float32: run by test_collectives."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from precheck.observe.shadow.distributed.exchange import _Caught
from precheck.observe.shadow.distributed.ranks import meet
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.places.module_tracker import ModuleTracker
from precheck.observe.shadow.replaying.replay import OpCall, plan

# torch 2.9 knows these under their first names; 2.15 warns of those
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
functional_gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
functional_scatter = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor

Case = Callable[[torch.Tensor], list[torch.Tensor]]


def sent(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Each rank's own numbers, which no 16-bit format holds."""
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(dist.get_rank()), dtype=torch.float32).to(dtype)


def reduced(x: torch.Tensor) -> list[torch.Tensor]:
    dist.all_reduce(x)
    return [x]


def reduced_later(x: torch.Tensor) -> list[torch.Tensor]:
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return [x]


def largest(x: torch.Tensor) -> list[torch.Tensor]:
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return [x]


def gathered(x: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x)
    return parts


def gathered_whole(x: torch.Tensor) -> list[torch.Tensor]:
    whole = torch.empty(16, 3, dtype=x.dtype)
    all_gather(whole, x)
    return [whole]


def scattered(x: torch.Tensor) -> list[torch.Tensor]:
    part = torch.empty(4, 3, dtype=x.dtype)
    reduce_scatter(part, x)
    return [part]


def scattered_later(x: torch.Tensor) -> list[torch.Tensor]:
    part = torch.empty(4, 3, dtype=x.dtype)
    reduce_scatter(part, x, async_op=True).wait()
    return [part]


def sent_around(x: torch.Tensor) -> list[torch.Tensor]:
    dist.broadcast(x, src=1)
    return [x]


def exchanged(x: torch.Tensor) -> list[torch.Tensor]:
    other = torch.empty_like(x)
    dist.all_to_all_single(other, x)
    return [other]


def part_of_a_whole(x: torch.Tensor) -> list[torch.Tensor]:
    dist.all_reduce(x[2:5])
    return [x]


def functionally(x: torch.Tensor) -> list[torch.Tensor]:
    return [functional.all_reduce(x, "sum", dist.group.WORLD) * 1]


def functionally_gathered(x: torch.Tensor) -> list[torch.Tensor]:
    return [functional_gather(x, 0, dist.group.WORLD) * 1]


def functionally_scattered(x: torch.Tensor) -> list[torch.Tensor]:
    return [functional_scatter(x, "sum", 0, dist.group.WORLD) * 1]


def among_some(x: torch.Tensor) -> list[torch.Tensor]:
    group = dist.new_group([1, 0])
    dist.all_reduce(x, group=group)
    return [x]


def averaged(x: torch.Tensor) -> list[torch.Tensor]:
    """As NCCL averages for FSDP; gloo, which shadows go through, cannot."""
    shadows = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Shadow)]
    with _disable_current_modes():
        boxed = {}
        for name in ("SUM", "AVG"):
            with _Caught() as caught, contextlib.suppress(RuntimeError):
                dist.all_reduce(torch.zeros(1), op=getattr(dist.ReduceOp, name))
            boxed[name] = caught.args[2]

        def on_nccl(tensors: list[torch.Tensor], group: Any, op: Any, *rest: Any) -> Any:
            own = dist.ProcessGroup.unbox(group) is dist.group.WORLD
            result = torch.ops.c10d.allreduce_(tensors, group, boxed["SUM"] if own else op, *rest)
            if own:
                dist.Work.unbox(result[1]).wait()
                tensors[0].div_(2)
            return result

        given = ([x], dist.group.WORLD.boxed(), boxed["AVG"], None, False)
        if shadows:
            shadows[0].collectives(OpCall(on_nccl, plan(torch.ops.c10d.allreduce_.default), given, {}))
        else:
            on_nccl(*given)
    return [x]


CASES = (reduced, reduced_later, largest, gathered, gathered_whole, scattered, scattered_later, sent_around, exchanged, part_of_a_whole,
         functionally, functionally_gathered, functionally_scattered, among_some, averaged)  # fmt: skip


def beside(case: Case) -> dict[str, Any]:
    """The case in bfloat16 plain and watched, its shadow, and the case in float32."""
    plain, exact = case(sent(torch.bfloat16)), case(sent())
    ranks, why = meet(torch.float32)
    shadow = Shadow(ModuleTracker())
    shadow.collectives.ranks = ranks
    with shadow:
        given = sent()
        results = case(given.bfloat16())
    cells = [shadow.memory.find(result) for result in results]
    shadows = [None if cell is None else shadow.memory.view(cell, result) for cell, result in zip(cells, results, strict=True)]
    operations = [operation for operation in shadow.observation.operations if "::" in operation.name]
    told = {
        "why": why or (ranks.lost if ranks else ""),
        "unchanged": all(torch.equal(one, other) for one, other in zip(plain, results, strict=True)),
        "followed": all(one is not None and torch.equal(one, other) for one, other in zip(shadows, exact, strict=True)),
        "rounded": any(not torch.equal(one.float(), other) for one, other in zip(results, exact, strict=True)),
        "local": max((value.local or 0.0 for operation in operations for value in operation.outputs), default=0.0),
        "inputs": [len(operation.inputs) for operation in operations],
    }  # fmt: skip
    if ranks is not None:
        ranks.part("", wait=True)
    return told


def main(folder: Path, names: list[str]) -> None:
    dist.init_process_group("gloo")
    told = {case.__name__: beside(case) for case in CASES if case.__name__ in names}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(told), encoding="utf8")
    dist.barrier()
    dist.destroy_process_group()

