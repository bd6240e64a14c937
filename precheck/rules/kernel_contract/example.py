"""A kernel with the wrong eps."""

import torch

import precheck


def reference(x):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def candidate(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


torch.manual_seed(0)
report = precheck.compare_kernels(candidate, reference, torch.randn(8, 64))
print(report.summary())
