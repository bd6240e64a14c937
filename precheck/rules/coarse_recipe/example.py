"""An input channel that the weight ignores, and that int8 must hold beside the others."""

import torch

import precheck

torch.manual_seed(0)
layer, x = torch.nn.Linear(64, 32), torch.randn(16, 64)
with torch.no_grad():
    layer.weight[:, 17] = 0
x[:, 17] = 1e4
report = precheck.measure(layer, x, precision="int8-dynamic")
print(report.summary())
