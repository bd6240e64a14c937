"""A layer and the function that it calls."""

import torch

import precheck

torch.manual_seed(0)
layer = torch.nn.Linear(16, 8)
report = precheck.compare(layer, lambda x: torch.nn.functional.linear(x, layer.weight, layer.bias), torch.randn(4, 16))
print(report.summary())
