"""Gradients clipped before they are unscaled."""

import torch

import precheck

torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
with precheck.watch() as report:
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 16)).square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clips scaled gradients: scaler.unscale_(optimizer) is missing
        scaler.step(optimizer)
        scaler.update()
print(report.summary())
