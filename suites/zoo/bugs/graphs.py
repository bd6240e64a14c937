"""Graphs and attention without softmax: degrees, gates and normalisers that are sums of few or of many."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Gated(nn.Module):
    """Mean of neighbours weighted by gates; 0 / 1e-6 where all gates are shut, and 1 / 1e-6 in the backward pass."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.edge = eps, nn.Parameter(4 * torch.eye(4))

    def forward(self, x: torch.Tensor, edges: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(edges @ self.edge)
        top = torch.zeros_like(x).index_add(0, ends[1], gate * x[ends[0]])
        bottom = torch.zeros_like(x).index_add(0, ends[1], gate)
        return top / (bottom + self.eps)  # culprit: shut-gates


def gated(eps: float) -> torch.Tensor:
    model = Gated(eps).half()
    edges = normal(6, 4, seed=1) / 4
    edges[5] = -5.0
    out = model(normal(4, 4).half(), edges.half(), torch.tensor([[0, 1, 2, 3, 1, 2], [1, 2, 0, 1, 0, 3]]))
    (out * normal(4, 4, seed=2).half()).sum().backward()
    assert model.edge.grad is not None
    return model.edge.grad


class Autoencoder(nn.Module):
    """Links from inner products; one that is predicted with certainty, wrongly, meets an eps of 1e-15."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.encode = eps, nn.Parameter(torch.eye(6))

    def forward(self, x: torch.Tensor, links: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        z = x @ self.encode
        yes = torch.sigmoid((z[links[0]] * z[links[1]]).sum(-1))
        no = torch.sigmoid((z[others[0]] * z[others[1]]).sum(-1))
        return -torch.log(yes + self.eps).mean() - torch.log(1 - no + self.eps).mean()  # culprit: certain-link


def links(fixed: bool) -> dict[str, Any]:
    x = (0.5 * normal(10, 6)).half().float()
    x[0], x[1] = 3.0, -3.0
    given = (x, torch.tensor([[0, 2, 4], [1, 3, 5]]), torch.tensor([[2, 6, 8], [0, 7, 9]]))
    return {"model": Autoencoder(1e-4 if fixed else 1e-15), "inputs": given, "precision": "16-true"}


def predicted(fixed: bool) -> torch.Tensor:
    x, yes, no = links(fixed)["inputs"]
    return Autoencoder(1e-4 if fixed else 1e-15).half()(x.half(), yes, no)


def normalised(floor: float) -> torch.Tensor:
    """An adjacency matrix over the roots of its degrees: (0 + 1e-10) ** -0.5 is large, and times zero is nothing."""
    near = (uniform(12, 12) < 0.3).float()
    near[3], near[:, 3] = 0, 0
    near = near.half()
    root = (near.sum(-1) + floor) ** -0.5  # culprit: isolated-node
    return root[:, None] * near * root


class Linear(nn.Module):
    """Linear attention: queries times the sum of 4096 keys, which passes 65504, and one over it is zero."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        low = q.dtype
        if self.wide:
            q, k, v = q.float(), k.float(), v.float()
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        total = (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)  # culprit: long-normaliser
        return (q @ (k.transpose(1, 2) @ (v / v.shape[1])) / (total + 1e-6) * v.shape[1]).to(low)


def attended(wide: bool) -> dict[str, Any]:
    given = (normal(1, 4096, 8).half().float(), (3 + normal(1, 4096, 8, seed=1)).half().float(), normal(1, 4096, 8, seed=2).half().float())
    return {"model": Linear(wide), "inputs": given, "precision": "16-true"}


class Features(nn.Module):
    """FAVOR: positive features exp(w x - x² / 2), all of them zero in half for a long query; their sum is divided by."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.register_buffer("w", normal(8, 32))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        low, w = q.dtype, self.w.float() if self.wide else self.w
        if self.wide:
            q, k, v = q.float(), k.float(), v.float()
        q, k = (torch.exp(each @ w - each.square().sum(-1, keepdim=True) / 2) for each in (q, k))  # culprit: positive-features
        return ((q @ (k.transpose(-2, -1) @ v)) / (q @ k.sum(-2, keepdim=True).transpose(-2, -1))).to(low)  # culprit: positive-features


def featured(wide: bool) -> dict[str, Any]:
    given = tuple((2.5 * normal(1, 16, 8, seed=seed)).half().float() for seed in range(3))
    return {"model": Features(wide), "inputs": given, "precision": "16-true"}


def last_tokens(dtype: torch.dtype) -> torch.Tensor:
    """Rows of a flat batch by a product of indices and strides, in the dtype of what is gathered."""
    hidden, lengths = normal(32, 33, 8), (33 * uniform(32)).long()
    index = torch.stack([torch.arange(32), lengths], 1).to(dtype)
    row = (index @ torch.tensor([[33], [1]]).to(dtype)).squeeze(1)  # culprit: rows-by-product
    return hidden.reshape(32 * 33, 8)[row.long().clamp(max=32 * 33 - 1)].to(LOW)


def at_half(given: dict[str, Any]) -> torch.Tensor:
    return given["model"].half()(*(each.half() for each in given["inputs"]))


BUGS = (
    Bug("shut-gates", "datamol-io/graphium#426", ("underflow", "overflow"), "aten.div.Tensor", lambda: gated(1e-6), lambda: gated(1e-3),
        phase="backward", module="Gated"),
    Bug("certain-link", "pyg-team/pytorch_geometric#2106", ("vanished-constant",), "aten.add.Tensor", lambda: predicted(False),
        lambda: predicted(True), module="Autoencoder", measured=links),
    Bug("isolated-node", "mlx-graphs/mlx-graphs#18", ("vanished-constant",), "aten.add.Tensor", lambda: normalised(1e-10),
        lambda: normalised(1e-4)),
    Bug("long-normaliser", "idiap/fast-transformers#32", ("overflow",), "aten.mul.Tensor", lambda: at_half(attended(False)),
        lambda: at_half(attended(True)), module="Linear", measured=attended),
    Bug("positive-features", "facebookresearch/xformers#96", ("underflow",), "aten.exp.default", lambda: at_half(featured(False)),
        lambda: at_half(featured(True)), module="Features", measured=featured),
    Bug("rows-by-product", "tenstorrent/tt-xla#5116", ("integer-rounding",), "aten.mm.default", lambda: last_tokens(LOW),
        lambda: last_tokens(torch.int64)),
)  # fmt: skip
