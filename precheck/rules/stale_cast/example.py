"""A training loop inside one autocast, which caches its casts of the weights until it ends."""

import torch

import precheck

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with precheck.watch(model) as report, torch.autocast("cpu", torch.bfloat16):  # where it belongs is around the forward pass
    for _ in range(3):
        loss = model(torch.ones(2, 8)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(report.summary())
