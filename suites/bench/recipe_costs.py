"""`python suites/bench/recipe_costs.py`: what an emulated training step of each recipe costs, over its bfloat16 step.

Two models: 8 layers of 256 with GELU on 512 rows, and 2 layers of a Transformer of width 128 on 8 sequences of 64. Forward and backward, one thread,
processor time, the least of `REPEATS` steps. All are timed in turn, so that a busy machine disturbs the ratio little. At most 5 times is aimed at.
Of precisions that are named, a whole `measure` is timed too, over its step and one in float32.
"""

from __future__ import annotations

import argparse
import itertools
import time

import torch
from torch import nn

import precheck
from precheck.precisions import resolve
from precheck.recipes import RECIPES

WIDTH, LAYERS, ROWS, REPEATS = 256, 8, 512, 15


def step(model: nn.Module, x: torch.Tensor, precision: str) -> float:
    """Processor seconds of one step."""
    chosen = resolve(precision)
    model.zero_grad()
    begun = time.process_time()
    with chosen.step():
        with chosen.autocast():
            out = model(x)
        out.float().square().mean().backward()
    return time.process_time() - begun


def measured(model: nn.Module, x: torch.Tensor, precision: str) -> float:
    """Processor seconds of a `measure` of one step."""
    begun = time.process_time()
    precheck.measure(model, x, precision=precision, loss=lambda out: out.float().square().mean())
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(prog="python suites/bench/recipe_costs.py", description=__doc__)
    parser.add_argument("measure", nargs="*", metavar="PRECISION", help="precisions whose whole `measure` is timed too")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deep = nn.Sequential(*itertools.chain.from_iterable((nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))
    transformer = nn.Sequential(*(nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)))
    for name, model, x in (("8 layers", deep, torch.randn(ROWS, WIDTH)), ("Transformer", transformer, torch.randn(8, 64, 128))):
        print(name)
        timed(model, x, asked.measure)


def timed(model: nn.Module, x: torch.Tensor, asked: list[str]) -> None:
    """Prints the table of one model."""
    least = dict.fromkeys(("bf16-mixed", "32-true", *(asked or RECIPES)), float("inf"))
    whole = dict.fromkeys(asked, float("inf"))
    for _ in range(REPEATS):
        for name in least:
            least[name] = min(least[name], step(model, x, name))
        for name in whole:
            whole[name] = min(whole[name], measured(model, x, name))
    for name, seconds in least.items():
        print(f"{name:40} {1e3 * seconds:7.1f} ms  {seconds / least['bf16-mixed']:5.2f} times bf16-mixed")
    for name, seconds in whole.items():
        print(f"measure {name:32} {1e3 * seconds:7.1f} ms  {seconds / (least[name] + least['32-true']):5.2f} times a step and one in float32")


if __name__ == "__main__":
    main()
