"""A check whose inputs differ from those of its golden."""

import tempfile
from pathlib import Path

import torch

import precheck
from precheck.goldens.file import write
from precheck.goldens.lifecycle import record
from precheck.measurement import job_of

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
with tempfile.TemporaryDirectory() as folder:
    golden = Path(folder) / "golden.safetensors"
    write(golden, record(job_of(model, torch.zeros(4, 8))))  # what pytest --golden-refresh does
    report = precheck.check(model, torch.ones(4, 8), golden=golden, precision="bf16-mixed")  # other inputs than were recorded
print(report.summary())
