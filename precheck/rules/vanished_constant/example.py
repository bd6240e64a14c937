"""An eps that float16 does not hold."""

import torch

import precheck

x = torch.zeros(8, dtype=torch.float16)
with precheck.watch() as report:
    unit = x / (x.norm() + 1e-8)  # 1e-8 is zero in float16
print(report.summary())
