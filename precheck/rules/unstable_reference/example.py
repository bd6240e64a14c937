"""A chaotic map."""

import torch

import precheck

with precheck.watch() as report:
    x = torch.linspace(0.1, 0.9, 64, dtype=torch.float16)
    for _ in range(60):
        x = 3.99 * x * (1 - x)  # chaos: each step doubles an error, so float32 has no digit left after 24
print(report.summary())
