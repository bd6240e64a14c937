"""Speech, neighbours and keys: a bin at the floor, lengths of an aligner, attention over a graph, a running product of attention."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def normalise_per_feature(features: torch.Tensor, centred: bool) -> torch.Tensor:
    """Log-mel features of an utterance, each bin with mean zero and spread one."""
    mean = features.mean(0, keepdim=True)
    variance = (features - mean).square().mean(0) if centred else features.square().mean(0) - mean.square()[0]  # culprit: floor-of-a-bin
    return (features - mean) / (variance.clamp_min(0).sqrt() + 1e-5)


def utterance(centred: bool) -> torch.Tensor:
    """Three seconds, whose highest bin hardly leaves the floor of the logarithm."""
    features = -6 + 3 * normal(300, 40)
    features[:, -1] = -15.942385 + 0.005 * uniform(300, seed=1)
    return normalise_per_feature(features, centred)


class AlignmentModel(nn.Module):
    """Finds which frame of speech says which token, by distances of their features."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.lengths_dtype = dtype
        self.text, self.speech = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, text: torch.Tensor, speech: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([speech.size(1)]).to(self.lengths_dtype or torch.int64)  # culprit: aligned-lengths
        score = self.speech(speech) @ self.text(text).transpose(1, 2)
        places = torch.arange(int(lengths.max()))
        padding = (places[None] >= lengths[:, None])[..., None]
        return functional.log_softmax(score.masked_fill(padding, -torch.inf), -1)  # culprit: aligned-lengths


def aligned(dtype: torch.dtype | None) -> torch.Tensor:
    model = AlignmentModel(dtype)
    with torch.no_grad():
        model.text.weight.copy_(0.3 * normal(8, 8))
        model.speech.weight.copy_(0.3 * normal(8, 8, seed=1))
    return model.half()(normal(1, 20, 8, seed=2).half(), normal(1, 2131, 8, seed=3).half())


class GraphAttention(nn.Module):
    """Features of a node are those of its neighbours, weighted by attention."""

    def __init__(self, stable: bool) -> None:
        super().__init__()
        self.stable = stable
        self.weight, self.source, self.target = (nn.Parameter(each) for each in (
            0.4 * normal(16, 16), 0.7 * normal(16, seed=1), 0.7 * normal(16, seed=2)))  # fmt: skip

    def forward(self, features: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden = features @ self.weight
        source, target = edges
        scores = functional.leaky_relu((hidden @ self.source)[source] + (hidden @ self.target)[target], 0.2)
        if self.stable:
            highest = torch.full((len(features),), -torch.inf, dtype=scores.dtype).scatter_reduce(0, target, scores, "amax")
            scores = scores - highest[target]
        attention = scores.exp()  # culprit: exponents-of-neighbours
        total = torch.zeros(len(features), dtype=scores.dtype).index_add_(0, target, attention)
        attention = attention / total[target]
        return torch.zeros_like(hidden).index_add_(0, target, attention[:, None] * hidden[source])


def citations(stable: bool) -> torch.Tensor:
    """Sixty papers that cite each other eight times each."""
    edges = torch.stack([(torch.arange(480) * 37 + 11) % 60, torch.arange(480) // 8])
    features = 2.5 * normal(60, 16, seed=3)
    return GraphAttention(stable).half()(features.half(), edges).detach().float()


def attend_in_blocks(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, accumulated: torch.dtype) -> torch.Tensor:
    """Attention over blocks of sixty-four keys, with a running maximum, a running sum and a running product."""
    highest, total = torch.full((len(query), 1), -torch.inf), torch.zeros(len(query), 1)
    product = torch.zeros(len(query), value.shape[1], dtype=accumulated)
    for keys, values in zip(key.split(64), value.split(64), strict=True):
        scores = (query @ keys.T).float() / query.shape[1] ** 0.5
        higher = torch.maximum(highest, scores.amax(1, keepdim=True))
        weights, rescale = torch.exp(scores - higher), torch.exp(highest - higher)
        total = total * rescale + weights.sum(1, keepdim=True)
        product = product * rescale.to(accumulated) + (weights.half() @ values).to(accumulated)  # culprit: running-product
        highest = higher
    return product.float() / total


def video(accumulated: torch.dtype) -> torch.Tensor:
    """Attention of a video's tokens over 3072 others, whose values have a large mean in some channels."""
    query, key = 0.5 * normal(24, 32).half(), 0.5 * normal(3072, 32, seed=1).half()
    value = (normal(3072, 16, seed=2) + torch.tensor([0.0, 45.0] * 8)).half()
    return attend_in_blocks(query, key, value, accumulated)


BUGS = (
    Bug("floor-of-a-bin", "k2-fsa/sherpa-onnx#3857", ("amplified-rounding", "cancellation"), "aten.sub.Tensor", lambda: utterance(False),
        lambda: utterance(True), precision="32-true"),
    Bug("aligned-lengths", "facebookresearch/seamless_communication#539", ("integer-rounding",), "aten._to_copy.default", lambda: aligned(HALF),
        lambda: aligned(None), raises=RuntimeError),
    Bug("exponents-of-neighbours", "JuliaGraphs/GraphNeuralNetworks.jl#244", ("overflow", "nan"), "aten.exp.default", lambda: citations(False),
        lambda: citations(True), module="GraphAttention"),
    Bug("running-product", "thu-ml/SageAttention#93", ("overflow",), "aten.add.Tensor", lambda: video(HALF), lambda: video(WIDE)),
)  # fmt: skip
