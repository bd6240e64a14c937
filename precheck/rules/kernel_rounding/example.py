"""A variance as a difference of two means, which cancels where the mean is large."""

import torch

import precheck


def reference(x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def candidate(x):
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()
    return (x - mean) * torch.rsqrt(variance + 1e-5)


torch.manual_seed(0)
report = precheck.compare_kernels(candidate, reference, torch.randn(8, 64))
print(report.summary())
