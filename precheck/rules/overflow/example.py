"""A norm taken in float16."""

import torch

import precheck

x = torch.full((64,), 300.0, dtype=torch.float16)
with precheck.watch() as report:
    norm = x.square().mean().sqrt()  # 300² is beyond 65504, the largest float16
print(report.summary())
