"""Positions in bfloat16."""

import torch

import precheck

with precheck.watch() as report:
    positions = torch.arange(1000, dtype=torch.bfloat16)  # no odd number beyond 256
    angles = (positions[:, None] * torch.linspace(0.1, 1, 8)).sin()
print(report.summary())
