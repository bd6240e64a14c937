"""A branch on the dtype that detaches a weight."""

import torch

import precheck


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        weight = self.weight if x.dtype == torch.float32 else self.weight.detach()  # only this precision takes that way
        return x * weight.to(x.dtype)


report = precheck.measure(Table(), torch.ones(4, 8, requires_grad=True), precision="bf16-true", loss=lambda out: out.float().sum())
print(report.summary())
