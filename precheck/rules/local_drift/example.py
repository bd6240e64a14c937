"""A scatter kernel that adds up in the format of its inputs."""

import torch

import precheck

torch.manual_seed(0)
edges = (torch.rand(4096) * 64).round().to(torch.bfloat16) / 64
with precheck.watch() as report:
    sums = torch.zeros(2, dtype=torch.bfloat16).index_add(0, torch.arange(4096) % 2, edges)  # added up in bfloat16, one by one
print(report.summary())
