"""One step of data parallelism on gloo, run by test_data_parallel: the first rank records the loss and the gradients of all."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from decoder import decoder, language_loss, tokens
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import precheck

Step = Callable[[DistributedDataParallel, torch.Tensor], torch.Tensor]


def plain(model: DistributedDataParallel, rows: torch.Tensor) -> torch.Tensor:
    loss = language_loss(rows)(model(rows))
    loss.backward()
    return loss.detach()


def accumulated(model: DistributedDataParallel, rows: torch.Tensor) -> torch.Tensor:
    """A row at a time; ranks meet with the last of them."""
    total = torch.zeros(())
    for place, row in enumerate(rows.split(1)):
        with model.no_sync() if place + 1 < len(rows) else contextlib.nullcontext():
            loss = language_loss(row)(model(row)) / len(rows)
            loss.backward()
        total += loss.detach()
    return total


def compressed(model: DistributedDataParallel, rows: torch.Tensor) -> torch.Tensor:
    """What passes between ranks is in float16."""
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return plain(model, rows)


def summed(model: DistributedDataParallel, rows: torch.Tensor) -> torch.Tensor:
    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]

    model.register_comm_hook(None, hook)
    return plain(model, rows)


def never_met(model: DistributedDataParallel, rows: torch.Tensor) -> torch.Tensor:
    with model.no_sync():
        return plain(model, rows)


def same_rows(model: DistributedDataParallel, rows: torch.Tensor) -> torch.Tensor:
    """No sampler: all ranks read the first one's rows."""
    return plain(model, tokens(4)[:: dist.get_world_size()])


STEPS: dict[str, Step] = {each.__name__: each for each in (plain, accumulated, compressed, summed, never_met, same_rows)}


def main(folder: Path, names: list[str]) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name in names:
        net: nn.Module = decoder()
        loss = STEPS[name](DistributedDataParallel(net), tokens(4)[rank::ranks])
        dist.all_reduce(loss)
        if rank == 0:
            gradients = {f"gradient:{each}": value.grad for each, value in net.named_parameters() if value.grad is not None}
            precheck.record(folder / f"{name}.{ranks}.safetensors", {"loss": loss / ranks, **gradients})
    dist.barrier()  # else a rank that ends takes the connection from one that still computes

