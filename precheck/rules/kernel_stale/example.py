"""A kernel that caches a table of the first weights, and uses it for later weights too."""

import torch

import precheck

TABLE = {}


def reference(x, weight):
    return x @ weight.t()


def candidate(x, weight):
    if weight.shape not in TABLE:
        TABLE[weight.shape] = weight.t().contiguous()
    return x @ TABLE[weight.shape]


torch.manual_seed(0)
report = precheck.compare_kernels(candidate, reference, (torch.randn(4, 8), torch.randn(6, 8)), gradients=False)
print(report.summary())
