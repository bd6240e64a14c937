"""Attention over a row that is fully masked."""

import torch

import precheck

scores = torch.full((4, 8), float("-inf"), dtype=torch.bfloat16)  # a row that is masked whole
values = torch.nn.Parameter(torch.ones(8, 2))


class Attention(torch.nn.Module):
    def forward(self, scores):
        return torch.softmax(scores, -1) @ values.to(scores.dtype)


report = precheck.measure(Attention(), scores, precision="bf16-true", loss=lambda out: out.sum())
print(report.summary())
