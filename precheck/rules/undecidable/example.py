"""Two forms of GELU, which differ by less than a rounding to bfloat16 does."""

import torch

import precheck

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16))
other = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(16, 16))
other.load_state_dict(model.state_dict())
report = precheck.compare(model, other, torch.randn(8, 16), precision="bf16-mixed")
print(report.summary())
