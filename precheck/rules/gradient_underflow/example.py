"""float16 gradients of a small loss, without a GradScaler."""

import torch

import precheck

model = torch.nn.Linear(16, 16).half()
x = torch.randn(8, 16).half()
with precheck.watch() as report:
    loss = model(x).float().square().mean() * 1e-7  # without a loss scale its gradients are zero in float16
    loss.backward()
print(report.summary())
