"""A model that overflows whatever the loss scale."""

import torch

import precheck


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x) * 1e5  # the gradient is beyond float16 whatever the loss scale


torch.manual_seed(0)
report = precheck.measure(Wide(), torch.randn(4, 8), precision="16-mixed", loss=lambda out: out.float().sum() * 1e5)
print(report.summary())
