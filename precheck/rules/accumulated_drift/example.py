"""An offset that takes the digits of the numbers to which it is added."""

import torch

import precheck


class Offset(torch.nn.Module):
    def forward(self, x):
        return ((x.to(torch.bfloat16) + 300) - 300).float()


torch.manual_seed(0)
report = precheck.measure(torch.nn.Sequential(torch.nn.Linear(8, 8), Offset()), torch.randn(16, 8), precision="bf16-mixed")
print(report.summary())
