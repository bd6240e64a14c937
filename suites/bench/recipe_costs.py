"""`python suites/bench/recipe_costs.py`: what an emulated training step of each recipe costs, over its bfloat16 step.

8 layers of 256 with GELU, 512 rows, forward and backward, one thread, processor time, the least of `REPEATS` steps. All are timed in turn, so that a
busy machine disturbs the ratio little. Issue 25 asks for 5 times at most. Of precisions that are named, a whole `measure` is timed
too, over its step and one in float32.
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
    model = nn.Sequential(*itertools.chain.from_iterable((nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))
    x = torch.randn(ROWS, WIDTH)
    least = dict.fromkeys(("bf16-mixed", "32-true", *(asked.measure or RECIPES)), float("inf"))
    whole = dict.fromkeys(asked.measure, float("inf"))
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
