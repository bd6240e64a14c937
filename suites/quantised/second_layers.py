"""A second batch of quantised layers, frozen before precheck was run on them. Each takes the name of a fault."""

from __future__ import annotations

import torch
from torch import nn

GROUP = 32
FAULTS = ("sign extension", "order ignored", "group size", "bias in eight bits", "outliers twice")


class Ordered(nn.Module):
    """GPTQ's order: groups of 32 are made of columns sorted by size. Signed codes of four bits, two a byte."""

    def __init__(self, linear: nn.Linear, fault: str = "") -> None:
        super().__init__()
        self.fault, weight = fault, linear.weight.detach().float()
        self.rows, self.columns = weight.shape
        order = weight.abs().sum(0).argsort(descending=True)
        scale = weight[:, order].view(self.rows, -1, GROUP).abs().amax(-1) / 7
        group = torch.empty(self.columns, dtype=torch.long)
        group[order] = torch.arange(self.columns) // GROUP
        codes = torch.round(weight / scale[:, group]).to(torch.int8)
        self.register_buffer("packed", ((codes[:, ::2] & 15) | ((codes[:, 1::2] & 15) << 4)).to(torch.uint8))
        self.register_buffer("scale", scale)
        self.register_buffer("group", group)
        self.bias = linear.bias

    def weight(self) -> torch.Tensor:
        codes = torch.stack([self.packed & 15, self.packed >> 4], -1).view(self.rows, self.columns).float()
        if self.fault != "sign extension":
            codes = torch.where(codes > 7, codes - 16, codes)
        group = self.group
        if self.fault == "order ignored":
            group = torch.arange(self.columns) // GROUP
        if self.fault == "group size":
            group = group // 2
        return codes * self.scale[:, group]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight().to(x.dtype), self.bias.to(x.dtype))


class Mixed(nn.Module):
    """LLM.int8(): columns of the input with large numbers in float, the others in int8 by tokens and channels."""

    def __init__(self, linear: nn.Linear, fault: str = "") -> None:
        super().__init__()
        self.fault, weight = fault, linear.weight.detach().float()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("codes", torch.round(weight / scale).to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        large = wide.abs().amax(0) > 6
        rest = wide if self.fault == "outliers twice" else wide * ~large
        given = rest.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
        out = torch.round(rest / given) @ self.codes.t().float() * given * self.scale.t()
        out = out + wide[:, large] @ (self.codes.float() * self.scale)[:, large].t()
        bias = self.bias.float()
        if self.fault == "bias in eight bits":
            unit = given.mean() * self.scale.view(-1)
            bias = torch.round(bias / unit).clamp(-128, 127) * unit
        return (out + bias).to(x.dtype)


KINDS = {"sign extension": Ordered, "order ignored": Ordered, "group size": Ordered, "bias in eight bits": Mixed, "outliers twice": Mixed}
