"""A module that casts to bfloat16 in every run."""

import torch

import precheck


class Leaky(torch.nn.Module):
    def forward(self, x):
        return x.to(torch.bfloat16)  # whatever precision was asked for


report = precheck.measure(Leaky(), torch.linspace(0, 1, 64), precision="32-true")
print(report.summary())
