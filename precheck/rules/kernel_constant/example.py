"""A kernel that returns zeros, which an absolute tolerance accepts for small numbers."""

import torch

import precheck


def reference(x):
    return x.softmax(-1)


def candidate(x):
    return x * 0


torch.manual_seed(0)
report = precheck.compare_kernels(candidate, reference, torch.randn(4, 2000))
print(report.summary())
