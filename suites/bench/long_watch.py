"""`python suites/bench/long_watch.py 2000`: the memory of one long watch, and how long it takes to close.

Two blocks of Linear, GELU and LayerNorm are trained in bfloat16 by AdamW. What is judged of the past is kept in running figures, so memory
should stand still once the first windows are full (Linux only: memory is read from /proc).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import precheck

SHOWN = (10, 100, 200, 500, 1000, 1500, 2000, 5000, 10_000)
SETTLED = 200  # steps, after which memory should stand still


def resident() -> float:
    """Megabytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))


def main() -> int:
    """0, whatever was measured."""
    parser = argparse.ArgumentParser(prog="python suites/bench/long_watch.py", description=__doc__)
    parser.add_argument("steps", nargs="?", type=int, default=2000, help="how many (default: 2000)")
    steps: int = parser.parse_args().steps
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(block(64), block(64)).bfloat16()
    optimizer, values = torch.optim.AdamW(model.parameters(), 1e-3), torch.randn(8, 64).bfloat16()
    measured: dict[int, float] = {}
    with precheck.watch() as report:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            model(values).float().square().mean().backward()
            optimizer.step()
            if step in SHOWN or step == steps:
                measured[step] = resident()
                print(f"step {step:6}: {measured[step]:.1f} MB", flush=True)
        wall, used = time.perf_counter(), time.process_time()
    print(f"closing: {time.perf_counter() - wall:.2f} s, {time.process_time() - used:.2f} s of them this process's; {report.facts['ops']} operations")
    if steps > SETTLED:
        print(f"from step {SETTLED} to {steps}: {measured[steps] - measured[SETTLED]:+.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
