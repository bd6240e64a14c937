"""A small number to its third power in float16."""

import torch

import precheck

x = torch.full((64,), 1e-4, dtype=torch.float16)
with precheck.watch() as report:
    energy = (x * x * x).sum()  # 1e-12 is zero in float16
    inverse = 1 / (energy.float() + 1e-20)
print(report.summary())
