"""A router with near-ties, which bfloat16 decides differently from the float32 run of the golden."""

import tempfile
from pathlib import Path

import torch

import precheck
from precheck.goldens.file import write
from precheck.goldens.lifecycle import record
from precheck.measurement import job_of


class Routed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(16, 4)
        self.experts = torch.nn.Parameter(torch.randn(4, 16))

    def forward(self, x):
        return x * self.experts[self.router(x).argmax(-1)]


torch.manual_seed(0)
model, x = Routed(), torch.randn(512, 16)
with tempfile.TemporaryDirectory() as folder:
    golden = Path(folder) / "golden.safetensors"
    write(golden, record(job_of(model, x)))  # what pytest --golden-refresh does
    report = precheck.check(model, x, golden=golden, precision="bf16-mixed")
print(report.summary())
