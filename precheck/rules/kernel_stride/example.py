"""A kernel that reads memory as if the input were contiguous."""

import torch

import precheck


def reference(x):
    return x.exp()


def candidate(x):
    return torch.as_strided(x, (x.numel(),), (1,), x.storage_offset()).view(x.shape).exp()


torch.manual_seed(0)
report = precheck.compare_kernels(candidate, reference, torch.randn(6, 8))
print(report.summary())
