"""A loss scale that grows after every step, and overflows in every other."""

import torch

import precheck

torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
with precheck.watch(precision="16-mixed") as report:
    for _ in range(12):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 16)).float().square().mean() * 2.0**8).backward()
        scaler.step(optimizer)
        scaler.update()
print(report.summary())
