"""A sum whose accumulator is bfloat16 like its terms."""

import torch

import precheck


def reference(x):
    return x.sum(-1)


def candidate(x):
    total = torch.zeros_like(x[..., 0])
    for column in x.unbind(-1):
        total = total + column
    return total


torch.manual_seed(0)
report = precheck.compare_kernels(candidate, reference, torch.rand(8, 300).bfloat16())
print(report.summary())
