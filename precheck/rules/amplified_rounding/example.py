"""A phase that is rounded before its sine is taken."""

import torch

import precheck

t = torch.linspace(0, 1000, 512)
with precheck.watch() as report:
    phases = (t * 6.2831853).to(torch.bfloat16)  # off by up to 16 radians
    wave = phases.float().sin()
print(report.summary())
