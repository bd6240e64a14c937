"""A kernel that adds up in float16 what the reference adds up in float32."""

import torch

import precheck


def total(x):
    return x.square().sum(-1)


def kernel(x):
    accumulator = torch.zeros(x.shape[:-1], dtype=torch.float16)
    for column in x.square().unbind(-1):
        accumulator = accumulator + column.half()
    return accumulator.to(x.dtype)


torch.manual_seed(0)
report = precheck.compare(total, kernel, torch.randn(64, 100))
print(report.summary())
