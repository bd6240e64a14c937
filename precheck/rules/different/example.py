"""A port whose normalisation has another eps, between weights that are equal."""

import torch

import precheck

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32, eps=1e-6), torch.nn.Linear(32, 4))
port = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))  # torch's own eps is 1e-5
port.load_state_dict(model.state_dict())
report = precheck.compare(model, port, torch.randn(8, 16))
print(report.summary())
