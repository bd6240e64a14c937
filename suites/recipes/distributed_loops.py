"""Training loops of two ranks, as people write them: run by test_distributed, each first plain, then watched.

Each rank writes what it saw to a file of its own, as JSON: findings, facts, and whether the weights are those of the plain run.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import precheck

STEPS = 3
Loss = Callable[[torch.Tensor], torch.Tensor]
Loop = Callable[[], nn.Module]
Future = torch.futures.Future[torch.Tensor]


def network(norm: type[nn.Module] = nn.LayerNorm) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), norm(64), nn.Linear(64, 4))


def sharded(model: nn.Module, **policy: torch.dtype) -> nn.Module:
    for layer in (model[0], model[3]):
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(**policy))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(**policy))
    return model


def batches(dtype: torch.dtype = torch.float32, alike: bool = False) -> Iterator[torch.Tensor]:
    """Each rank's own data, unless they are to be `alike`."""
    generator = torch.Generator().manual_seed(0 if alike else dist.get_rank())
    for _ in range(STEPS):
        yield torch.randn(16, 32, generator=generator).to(dtype)


def squares(output: torch.Tensor) -> torch.Tensor:
    return (output.float() - 1).square().mean()


def train(
    model: nn.Module, *, loss: Loss = squares, lr: float = 1e-2, autocast: bool = False, dtype: torch.dtype = torch.float32, clip: float = 0,
    alike: bool = False,
) -> nn.Module:  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for batch in batches(dtype, alike):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(batch)
        loss(output).backward()
        if clip:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model


def tensor_parallel() -> nn.Module:
    """The first layer by columns, the last by rows, in bfloat16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4)).bfloat16()
    return parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


def hooked(hook: Callable[..., Future]) -> nn.Module:
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, hook)
    return model


def in_bfloat16(state: object, bucket: dist.GradBucket) -> Future:
    return default_hooks.bf16_compress_hook(state, bucket)  # which DDP itself refuses by name on gloo


def summed_in_float16(state: object, bucket: dist.GradBucket) -> Future:
    """Divides by the number of ranks, but after the sum."""
    buffer = bucket.buffer()
    future = dist.all_reduce(buffer.half(), async_op=True).get_future()
    return future.then(lambda done: buffer.copy_(done.value()[0]).div_(dist.get_world_size()))


def accumulated() -> nn.Module:
    """Gradients of two batches are added before they are reduced."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for place, batch in enumerate(batches()):
        with model.no_sync() if place % 2 == 0 else contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16):
            squares(model(batch)).backward()
        if place % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def scaled() -> nn.Module:
    """float16 under a scaler, as the documentation of DDP and of GradScaler have it together."""
    model = DistributedDataParallel(network())
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for batch in batches():
        with torch.autocast("cpu", torch.float16):
            loss = squares(model(batch))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model


def opposed(output: torch.Tensor) -> torch.Tensor:
    """A large part that ranks pull in opposite directions, so that their sum is without it; what is to be learnt is small beside it."""
    return squares(output) + 1e2 * (1 - 2 * dist.get_rank()) * output.float().sum()


def one_overflows(output: torch.Tensor) -> torch.Tensor:
    """Exponentials in float16, of numbers up to some 2 on rank 0 and 40 on rank 1; e^12 is beyond float16."""
    return squares(output) + (output * (20 if dist.get_rank() else 1)).half().exp().mean().float()


def one_weight_overflows() -> nn.Module:
    """On rank 1 alone, and so that the gradients of all other parameters stay what they are."""
    model = parallel()
    large = 400 if dist.get_rank() else 1
    return train(model, loss=lambda output: squares(output) + (model.module[3].weight * large).half().exp().mean().float())


def parallel() -> DistributedDataParallel:
    return DistributedDataParallel(network())


BFLOAT16 = torch.bfloat16
class Angles(nn.Module):
    """Positions in, their sines out, by weights beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return self.weight * (positions[:, None] * torch.logspace(0, -3, 32)).sin()


class Positioned(nn.Module):
    """A network that hands positions to a module which FSDP casts for, unless the policy leaves inputs alone."""

    def __init__(self, policy: MixedPrecisionPolicy) -> None:
        super().__init__()
        self.angles, self.out = fully_shard(Angles(), mp_policy=policy), nn.Linear(32, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(512, 512 + len(batch), dtype=torch.float32)
        return self.out(batch + self.angles(positions))


def positioned(**policy: Any) -> nn.Module:
    torch.manual_seed(0)
    return Positioned(MixedPrecisionPolicy(param_dtype=BFLOAT16, reduce_dtype=torch.float32, **policy))


HEALTHY: dict[str, Loop] = {
    "fsdp-casts-no-inputs": lambda: train(positioned(cast_forward_inputs=False)),
    "ddp-autocast": lambda: train(parallel(), autocast=True),
    "ddp-bucket-view": lambda: train(DistributedDataParallel(network(), gradient_as_bucket_view=True), autocast=True),
    "ddp-batch-norm": lambda: train(DistributedDataParallel(network(nn.BatchNorm1d)), autocast=True),
    "ddp-clipped": lambda: train(parallel(), autocast=True, clip=0.1),
    "ddp-bfloat16-hook": lambda: train(hooked(in_bfloat16), autocast=True),
    "ddp-float16-hook": lambda: train(hooked(default_hooks.fp16_compress_hook), autocast=True),
    "ddp-bfloat16-weights": lambda: train(DistributedDataParallel(network().bfloat16()), dtype=BFLOAT16),
    "ddp-accumulated": accumulated,
    "ddp-scaled": scaled,
    "fsdp-reduced-in-float32": lambda: train(sharded(network(), param_dtype=BFLOAT16, reduce_dtype=torch.float32)),
    "fsdp-reduced-in-bfloat16": lambda: train(sharded(network(), param_dtype=BFLOAT16, reduce_dtype=BFLOAT16)),
    "fsdp-small-steps": lambda: train(sharded(network(), param_dtype=BFLOAT16, reduce_dtype=torch.float32), lr=1e-4),
    "fsdp-clipped": lambda: train(sharded(network(), param_dtype=BFLOAT16, reduce_dtype=torch.float32), clip=0.1),
    "fsdp-bfloat16-weights": lambda: train(sharded(network().bfloat16()), dtype=BFLOAT16),
    "tensor-parallel": lambda: train(tensor_parallel(), dtype=BFLOAT16, alike=True),
    "fsdp-opposed-in-float32": lambda: train(sharded(network(), reduce_dtype=torch.float32), loss=opposed, alike=True),
}
FAULTY: dict[str, Loop] = {
    "float16-cast-overflows": lambda: train(hooked(default_hooks.fp16_compress_hook), loss=lambda output: 1e6 * squares(output)),
    "float16-sum-overflows": lambda: train(hooked(summed_in_float16), loss=lambda output: 8e4 * squares(output)),
    "float16-hook-flushes": lambda: train(hooked(default_hooks.fp16_compress_hook), loss=lambda output: 1e-8 * squares(output)),
    "opposed-in-bfloat16": lambda: train(sharded(network(), reduce_dtype=BFLOAT16), loss=opposed, alike=True),
    "lost-updates": lambda: train(sharded(network().bfloat16()), dtype=BFLOAT16, lr=1e-4),
    "one-rank-overflows": lambda: train(parallel(), loss=one_overflows),
    "one-weight-overflows": one_weight_overflows,
    "fsdp-casts-positions": lambda: train(positioned()),
}


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [getattr(each, "_local_tensor", each).detach().clone() for each in (*model.parameters(), *model.buffers())]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.nan_to_num(123.0), other.nan_to_num(123.0))


def seen(loop: Loop) -> dict[str, Any]:
    plain = weights(loop())
    with precheck.watch() as report:
        model = loop()
    unchanged = all(same(one, other) for one, other in zip(plain, weights(model), strict=True))
    findings = [
        {"text": str(each), "rule": each.rule, "severity": each.severity, "op": each.op, "source": each.source, "ranks": list(each.ranks),
         "cure": each.remedy}
        for each in report.findings
    ]  # fmt: skip
    return {"findings": findings, "facts": report.facts, "unchanged": unchanged, "ops": sorted({row.op for row in report.ops})}


def main(folder: Path, names: list[str]) -> None:
    dist.init_process_group("gloo")
    for name in names:
        told = seen((HEALTHY | FAULTY)[name])
        (folder / f"{name}.{dist.get_rank()}.json").write_text(json.dumps(told), encoding="utf8")
        dist.barrier()

