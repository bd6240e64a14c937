"""Written-out attention and torch's fused attention, which add the same terms in different orders."""

import torch
from torch.nn.functional import scaled_dot_product_attention

import precheck


def written(q, k, v):
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v


torch.manual_seed(0)
report = precheck.compare(scaled_dot_product_attention, written, tuple(torch.randn(2, 4, 24, 8) for _ in range(3)))
print(report.summary())
