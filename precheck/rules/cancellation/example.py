"""A variance as the difference of two large means."""

import torch

import precheck

torch.manual_seed(0)
x = (100 + torch.rand(256)).to(torch.bfloat16)
with precheck.watch() as report:
    variance = (x * x).mean() - x.mean() * x.mean()
    scaled = x.float() / variance.float().abs().sqrt()
print(report.summary())
