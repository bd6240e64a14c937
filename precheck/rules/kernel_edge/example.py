"""A kernel that does not compute the last tile."""

import torch

import precheck


def reference(x):
    return x * torch.sigmoid(x)


def candidate(x):
    out, whole = torch.zeros_like(x), len(x) // 4 * 4
    for start in range(0, whole, 4):
        tile = x[start : start + 4]
        out[start : start + 4] = tile * torch.sigmoid(tile)
    return out


torch.manual_seed(0)
report = precheck.compare_kernels(candidate, reference, torch.randn(4, 32))
print(report.summary())
