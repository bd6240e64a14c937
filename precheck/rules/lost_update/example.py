"""bfloat16 weights with a small learning rate and no master copy."""

import torch

import precheck

torch.manual_seed(0)
model = torch.nn.Linear(32, 32).to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(16, 32).to(torch.bfloat16)
with precheck.watch() as report:
    for _ in range(4):
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()  # moves by less than half of a bfloat16's spacing
print(report.summary())
