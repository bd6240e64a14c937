"""A counter in bfloat16."""

import torch

import precheck

total = torch.zeros((), dtype=torch.bfloat16)
with precheck.watch() as report:
    for _ in range(600):
        total += torch.ones((), dtype=torch.bfloat16)  # stands still at 256
print(report.summary())
