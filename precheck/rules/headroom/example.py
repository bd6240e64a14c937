"""Activations of half the largest float16 number."""

import torch

import precheck

torch.manual_seed(0)
report = precheck.measure(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), 4e4 * torch.rand(4, 8), precision="16-mixed")
print(report.summary())
