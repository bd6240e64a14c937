"""`python suites/bench/recipe_costs.py`: what an emulated training step of each recipe costs, over its bfloat16 step.

8 layers of 256 with GELU, 512 rows, forward and backward, one thread, processor time, the least of `REPEATS` steps. All are timed in turn, so that a
busy machine disturbs the ratio little. Issue 25 asks for 5 times at most.
"""

from __future__ import annotations

import itertools
import time

import torch
from torch import nn

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


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*itertools.chain.from_iterable((nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))
    x, least = torch.randn(ROWS, WIDTH), dict.fromkeys(("bf16-mixed", "32-true", *RECIPES), float("inf"))
    for _ in range(REPEATS):
        for name in least:
            least[name] = min(least[name], step(model, x, name))
    for name, seconds in least.items():
        print(f"{name:40} {1e3 * seconds:7.1f} ms  {seconds / least['bf16-mixed']:5.2f} times bf16-mixed")


if __name__ == "__main__":
    main()
