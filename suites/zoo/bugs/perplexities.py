"""What is measured of a model, and what its weights are measured by: perplexities, ranks, scales of codes."""

from __future__ import annotations

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def scaled_weights(dtype: torch.dtype) -> torch.Tensor:
    """A layer's weights, scaled by how large their inputs are before they are coded: the largest scale times the least overflows in half."""
    weight, inputs = (0.05 * normal(16, 64)).half(), (8 + normal(128, 64, seed=1).abs()).half()
    inputs[:, 5] = 20_000
    x_mean, w_mean = inputs.abs().mean(0).to(dtype), weight.abs().mean(0).to(dtype)
    scales = (x_mean / (w_mean.pow(0.0) + 1e-4)).clamp(min=1e-4)
    scales = scales / (scales.max() * scales.min()).sqrt()  # culprit: scaled-weights
    scaled = weight.to(dtype) * scales
    step = (scaled.amax(1, keepdim=True) - scaled.amin(1, keepdim=True)).clamp(min=1e-5) / 15
    zeros = -(scaled.amin(1, keepdim=True) / step).round()
    return ((((scaled / step).round() + zeros).clamp(0, 15) - zeros) * step / scales).float()


def asymmetric(floor: float, bits: int = 4) -> torch.Tensor:
    """Weights of an expert, rounded to 4 bits in groups of 16; the scale of a group that training never reached is zero in half."""
    weight = 0.02 * normal(12, 4, 16)
    weight[3, 2] *= 1e-6
    tuned = 0.2 * (uniform(12, 4, 16) - 0.5)
    low, high = weight.amin(-1, keepdim=True).clamp(max=0), weight.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).to(HALF)  # culprit: rounded-scale
    scale = scale.clamp(min=floor)
    zero = (-low / scale).round()
    codes = ((weight / scale + tuned).round() + zero).clamp(0, 2**bits - 1)  # culprit: rounded-scale
    return scale * (codes - zero)


def language(batches: int, length: int, seed: int = 0) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Hidden states, a vocabulary of 2000 and the tokens that were to be told, of a network that was quantised too far."""
    hidden = [normal(2, length, 24, seed=seed + place).to(LOW) for place in range(batches)]
    tokens = (uniform(batches, 2, length, seed=seed + 50) * 2000).long()
    return hidden, (0.4 * normal(2000, 24, seed=99)).to(LOW), tokens


@torch.no_grad()
def perplexity(widened: bool) -> torch.Tensor:
    """Exp of the mean loss of six contexts, each loss a number of bfloat16 near nine."""
    hidden, vocabulary, tokens = language(6, 48)
    losses = []
    for each, labels in zip(hidden, tokens, strict=True):
        logits = each @ vocabulary.T
        if widened:
            logits = logits.float()
        losses.append(functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))  # culprit: perplexity-dtype
    return torch.exp(torch.stack(losses).mean()).float()  # culprit: perplexity-dtype


@torch.no_grad()
def by_position(widened: bool, bucket: int = 32) -> torch.Tensor:
    """Perplexities by the position of a token: the losses of all that lie in a bucket are added up over forty batches."""
    hidden, vocabulary, tokens = language(40, 64)
    sums = [torch.zeros((), dtype=WIDE if widened else LOW) for _ in range(64 // bucket)]
    for each, labels in zip(hidden, tokens, strict=True):
        logits = each @ vocabulary.T
        if widened:
            logits = logits.float()
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(2, -1)  # culprit: bucket-losses
        for place, start in enumerate(range(0, 64, bucket)):
            sums[place] += losses[:, start : start + bucket].sum()  # culprit: bucket-losses
    return torch.exp(torch.stack(sums).float() / (40 * 2 * bucket))


def reciprocal_ranks(widened: bool) -> torch.Tensor:
    """Reciprocal ranks of the right one of 300 documents: most similarities lie between 0.986 and 0.993, two numbers of bfloat16."""
    topic = normal(1, 64)
    told = topic + 0.08 * normal(300, 64, seed=1)
    documents = functional.normalize(told, dim=-1).to(LOW)
    queries = functional.normalize(told[200:240] + 0.1 * normal(40, 64, seed=2), dim=-1).to(LOW)
    if widened:
        documents, queries = documents.float(), queries.float()
    scores = functional.normalize(queries, dim=-1) @ functional.normalize(documents, dim=-1).T  # culprit: relevance-ties
    order = scores.argsort(dim=-1, descending=True, stable=True)
    rank = (order == torch.arange(200, 240)[:, None]).float().argmax(-1)
    return 1 / (1 + rank.float())


BUGS = (
    Bug("scaled-weights", "casper-hansen/AutoAWQ#532", ("overflow", "nan"), "aten.mul.Tensor", lambda: scaled_weights(HALF),
        lambda: scaled_weights(WIDE)),
    Bug("rounded-scale", "intel/auto-round#207", ("underflow", "nan", "vanished-constant"), "aten._to_copy.default", lambda: asymmetric(0.0),
        lambda: asymmetric(1e-5)),
    Bug("perplexity-dtype", "Xilinx/brevitas#1458", ("amplified-rounding", "local-drift"), "aten.mean.default", lambda: perplexity(False),
        lambda: perplexity(True)),
    Bug("bucket-losses", "fla-org/flash-linear-attention#1222", ("accumulated-drift", "absorption", "amplified-rounding"),
        "aten.add_.Tensor", lambda: by_position(False), lambda: by_position(True)),
    Bug("relevance-ties", "embeddings-benchmark/mteb#4933", ("decision-flip", "local-drift", "amplified-rounding"), "aten.mm.default",
        lambda: reciprocal_ranks(False), lambda: reciprocal_ranks(True)),
)  # fmt: skip
