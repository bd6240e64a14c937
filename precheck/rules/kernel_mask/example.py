"""A causal mask that is shifted by one."""

import torch

import precheck


def reference(scores):
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1)


def candidate(scores):
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1)


torch.manual_seed(0)
report = precheck.compare_kernels(candidate, reference, torch.randn(2, 12, 12))
print(report.summary())
