"""`python suites/bench/pair_costs.py 17`: what `precheck.compare` costs of a healthy pair, in processor time, over one step of each of the two.

The pair is the GPT of the other budgets and the same written out, by its formulas.
"""

from __future__ import annotations

import argparse
import cProfile
import math
import pstats
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from sized import Block, adamw, loss_of, made
from torch import nn

import precheck
from precheck.measurement import job_of
from precheck.observe.run import run
from precheck.observe.setting import Setting, low
from precheck.pairs import sides
from precheck.precisions import resolve

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")


class Written(Block):
    """Attention and norms by their formulas."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (each.unflatten(-1, (8, -1)).transpose(1, 2) for each in self.qkv(normed(self.first, x)).chunk(3, -1))
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // 8)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, -math.inf).softmax(-1) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(normed(self.second, x))


def normed(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    centred = x.float() - x.float().mean(-1, keepdim=True)
    return (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias).to(x.dtype)


def pair(millions: int) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    model, ids = made(millions)
    other, _ = made(millions)
    for block in other.blocks:
        block.__class__ = Written
    return model, other, ids


def runs(counted: Counter[str]) -> Iterator[None]:
    """Counts the runs that sides make, by what they are for, and their processor time."""
    original = sides.run

    def counting(job: Any, setting: Setting) -> Any:
        kind = "low" if setting.precision else "noise" if setting.disturbance else "exact"
        begun = time.process_time()
        found = original(job, setting)
        counted[f"{kind} {str(setting.dtype).removeprefix('torch.')}"] += 1
        counted["seconds in runs"] += round(1e3 * (time.process_time() - begun))
        return found

    sides.run = counting
    yield
    sides.run = original


def measured(millions: int, precision: str, optimizer: Any) -> str:
    model, other, ids = pair(millions)
    given = {"loss": loss_of(ids), "optimizer": optimizer}
    plain = 0.0
    for each in (model, other):
        job = job_of(each, ids, **given, steps=1, seed=0)
        run(job, low(resolve(precision))) if millions < 17 else None  # the first use of a kernel
        plain += bare(each, ids, precision, optimizer)
    counted: Counter[str] = Counter()
    counting = runs(counted)
    next(counting)
    begun = time.process_time()
    report = precheck.compare(model, other, ids, precision=precision, **given)
    taken = time.process_time() - begun
    next(counting, None)
    inside = counted.pop("seconds in runs") / 1e3
    told = ", ".join(f"{count} x {kind}" for kind, count in counted.items())
    return (
        f"{millions} M, {precision}, {'AdamW' if optimizer else 'no optimizer'}: {taken / plain:.1f} times ({report.verdict}); "
        f"{plain:.1f} s, {taken:.1f} s, of which {inside:.1f} s in runs: {told}"
    )


def bare(model: nn.Module, ids: torch.Tensor, precision: str, optimizer: Any) -> float:
    """Seconds of one training step, with nothing of precheck's in it."""
    import copy

    chosen, model = resolve(precision), copy.deepcopy(model)
    model.to(chosen.param_dtype)
    held = optimizer(list(model.parameters())) if optimizer else None
    begun = time.process_time()
    with chosen.autocast("cpu"):
        loss = loss_of(ids)(model(ids))
    loss.backward()
    if held is not None:
        held.step()
    return time.process_time() - begun


def main() -> int:
    """0, whatever it costs: a clock decides nothing."""
    parser = argparse.ArgumentParser(prog="python suites/bench/pair_costs.py", description=__doc__)
    parser.add_argument("millions", nargs="*", type=int, default=[1])
    parser.add_argument("--precision", nargs="*", default=PRECISIONS)
    parser.add_argument("--plain", action="store_true", help="without an optimizer")
    parser.add_argument("--profile", type=int, metavar="LINES", help="show where the time goes, in so many lines")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for millions in asked.millions:
        for precision in asked.precision:
            watched = cProfile.Profile()
            optimizer = None if asked.plain else adamw
            words = watched.runcall(measured, millions, precision, optimizer) if asked.profile else measured(millions, precision, optimizer)
            print(words, flush=True)
            if asked.profile:
                pstats.Stats(watched, stream=sys.stdout).sort_stats("tottime").print_stats(asked.profile)
    return 0


if __name__ == "__main__":
    sys.exit(main())
