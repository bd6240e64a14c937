"""A graph network on a citation-like graph with hubs: edge lengths, degree normalisation, edge softmax, mean and spread of the neighbours."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
NODES, EDGES, FEATURES, WIDTH, HEADS, CLASSES = 300, 4000, 24, 32, 4, 7


def degrees(messages: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How many edges end at each node."""
    ones = torch.ones(target.shape, dtype=torch.float32, device=messages.device)
    return torch.zeros(NODES, dtype=ones.dtype, device=messages.device).index_add(0, target, ones)


def segment_mean(messages: torch.Tensor, target: torch.Tensor, degree: torch.Tensor) -> torch.Tensor:
    """The mean of the messages that arrive at each node; the sum is float32's, since hubs have a thousand edges."""
    summed = torch.zeros(NODES, messages.shape[-1], device=messages.device).index_add(0, target, messages.float())
    return summed / degree.clamp(min=1).unsqueeze(-1)


def segment_spread(messages: torch.Tensor, target: torch.Tensor, degree: torch.Tensor) -> torch.Tensor:
    """The standard deviation of the messages that arrive at each node."""
    centred = messages.float() - segment_mean(messages, target, degree)[target]
    variance = segment_mean(centred.square(), target, degree)
    return (variance + 1e-5).sqrt()


def edge_softmax(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A softmax over the edges that end at the same node."""
    with torch.autocast(scores.device.type, enabled=False):
        index = target.unsqueeze(-1).expand_as(scores)
        highest = scores.new_full((NODES, scores.shape[-1]), -torch.inf).scatter_reduce(0, index, scores, "amax")
        weights = torch.exp((scores - highest[target]).float())
        total = torch.zeros(NODES, scores.shape[-1], device=scores.device).index_add(0, target, weights.float())
        return weights / total[target]


def edge_lengths(places: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The squared length of every edge; places are grid cells, whole numbers."""
    apart = places[source] - places[target]
    return (apart * apart).sum(-1).float()


class Attention(nn.Module):
    """Neighbours weighed by a softmax over edges (GAT)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.sharpness = 8.0

    def forward(self, nodes: torch.Tensor, source: torch.Tensor, target: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        query, key, value = (project(nodes).unflatten(-1, (HEADS, -1)) for project in (self.query, self.key, self.value))
        scores = self.sharpness * torch.einsum("ehd,ehd->eh", query[target], key[source]) + bias.unsqueeze(-1)
        weights = edge_softmax(scores, target)
        messages = (weights.unsqueeze(-1) * value[source].float()).flatten(1)
        summed = torch.zeros(NODES, WIDTH, device=nodes.device).index_add(0, target, messages)
        return summed.to(value.dtype)


class Convolution(nn.Module):
    """Mean and spread of the neighbours' messages (PNA), scaled by degree as in graph convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(WIDTH, WIDTH)
        self.update = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, nodes: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        messages = self.message(nodes)[source]
        degree = degrees(messages, target)
        scale = torch.log1p(degree.float()).unsqueeze(-1) / 4
        mean = segment_mean(messages, target, degree)
        spread = segment_spread(messages, target, degree)
        seen = torch.cat([mean, spread, mean * scale], -1).to(messages.dtype)
        return functional.relu(self.update(seen))


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.convolutions = nn.ModuleList(Convolution() for _ in range(2))
        self.attention = Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, features: torch.Tensor, places: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        nodes = functional.relu(self.embed(features)) + 1
        bias = -torch.log1p(edge_lengths(places, source, target)).to(nodes.dtype)
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            nodes = norm(nodes + convolution(nodes, source, target)).to(nodes.dtype)
        nodes = self.norms[2](nodes + self.attention(nodes, source, target, bias)).to(nodes.dtype)
        return self.head(nodes)


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Graph()
    for convolution in model.convolutions:
        nn.init.constant_(convolution.message.bias, 4.0)  # as trained ones are, the messages are mostly positive
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(NODES, (EDGES,), generator=generator)
    target = torch.randint(NODES - 5, (EDGES,), generator=generator)  # the last nodes have no neighbours
    target[:900], target[900:1500] = 0, 1  # two hubs
    features = torch.randn(NODES, FEATURES, generator=generator)
    places = 200 + torch.randint(-12, 13, (NODES, 2), generator=generator)
    return {"features": features, "places": places, "edges": torch.stack([source, target])}


def loss(output: torch.Tensor) -> torch.Tensor:
    labels = torch.arange(len(output), device=output.device) % CLASSES
    return functional.cross_entropy(output.float(), labels)


optimizer = None
