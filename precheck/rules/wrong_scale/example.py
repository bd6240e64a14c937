"""A weight quantised by rows and dequantised by columns."""

import torch

import precheck

torch.manual_seed(0)
weight = torch.randn(64, 64) * torch.arange(1.0, 65.0)[:, None]
with precheck.watch() as report:
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    out = torch.randn(8, 64) @ (codes.float() * scale.t()).t()  # scale.t() belongs to the columns
print(report.summary())
