"""Models as DDP and FSDP2 wrap them: run by test_wrapped, each measured by all ranks, then trained on.

Each rank writes what it saw to a file of its own, as JSON.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from course import data, network
from distributed_loops import same, weights
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import precheck


class Squares(nn.Module):
    """Of numbers up to a few thousand, which float16 does not hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 2000 * x
        return (x * x).mean(-1, keepdim=True) * 1e-6  # squares


def faulty() -> nn.Module:
    return nn.Sequential(network(), Squares())


def sharded(model: nn.Module) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            fully_shard(module, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def parallel() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
    return parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ddp": lambda: DistributedDataParallel(network()),
    "ddp-faulty": lambda: DistributedDataParallel(faulty()),
    "fsdp": lambda: sharded(network()),
    "fsdp-faulty": lambda: sharded(faulty()),
    "tensor-parallel": parallel,
}


def trained(model: nn.Module, steps: int = 2) -> list[torch.Tensor]:
    """Under autocast, each rank on rows of its own: without a reduction the ranks' weights would go apart."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data()
    for step in range(steps):
        rows = slice(16 * (2 * step + dist.get_rank()), 16 * (2 * step + dist.get_rank() + 1))
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x[rows]).float()
        (cross_entropy(out, y[rows]) if out.shape[-1] > 1 else out.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def told(report: precheck.Report) -> list[dict[str, Any]]:
    return [{"rule": each.rule, "module": each.module, "source": each.source} for each in report.errors]


def seen(name: str) -> dict[str, Any]:
    """A model that was trained a little is measured in two precisions; then it is trained on, beside one that was not measured."""
    model, other = MODELS[name](), MODELS[name]()
    trained(model)
    trained(other)
    before, x = weights(model), data()[0][:16]
    found = {}
    for precision in ("bf16-true", "16-mixed"):
        try:
            report = precheck.measure(model, x, precision=precision, loss=lambda out: out.float().square().mean())
            found[precision] = {"errors": told(report), "tensors": [row.tensor for row in report.boundaries]}
        except precheck.InputError as error:
            found[precision] = {"refused": str(error)}
    unchanged = all(same(one, two) for one, two in zip(before, weights(model), strict=True))
    alike = all(same(one, two) for one, two in zip(trained(model), trained(other), strict=True))
    with precheck.watch(model) as report:
        trained(model)
    return {"found": found, "unchanged": unchanged, "alike": alike, "modules": sorted({row.module for row in report.ops})}


def main(folder: Path, names: list[str]) -> None:
    dist.init_process_group("gloo")
    for name in names:
        (folder / f"{name}.{dist.get_rank()}.json").write_text(json.dumps(seen(name)), encoding="utf8")
        dist.barrier()

