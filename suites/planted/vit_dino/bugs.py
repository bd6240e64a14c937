"""Bugs planted into the self-distilled vision transformer."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="position-angles-low",
        healthy="""    rates = 10000 ** (-torch.arange(0, width // 4, device=like.device, dtype=torch.float32) / (width // 4))
    angles = (place.float() + 0.5)[..., None] * PATCH * rates
""",
        planted="""    rates = 10000 ** (-torch.arange(0, width // 4, device=like.device, dtype=torch.float32) / (width // 4))
    angles = (place.to(like.dtype) + 0.5)[..., None] * PATCH * rates.to(like.dtype)  # culprit
""",
        precisions=LOW,
        part="function:positions",
        rules=("amplified-rounding", "integer-rounding", "accumulated-drift"),
        why="The angle of a patch far along the strip is rounded before its sine is taken, so distant patches get the places of others.",
        source="https://github.com/huggingface/transformers/issues/25681",
    ),
    Planted(
        name="sinkhorn-exponentials-low",
        healthy="    q = torch.exp(scores.float() / TEACHER_TEMPERATURE)\n",
        planted="    q = torch.exp((scores / TEACHER_TEMPERATURE).to(low))  # culprit\n",
        precisions=LOW,
        part="function:sinkhorn",
        rules=("overflow", "amplified-rounding", "nan"),
        why="A score divided by the temperature is rounded and then exponentiated: float16 overflows, bfloat16 loses the digits that "
        "tell prototypes apart.",
        source="https://github.com/facebookresearch/dinov2/pull/583",
        more=(
            ("def sinkhorn(scores: torch.Tensor, rounds: int = 3)", "def sinkhorn(scores: torch.Tensor, low: torch.dtype, rounds: int = 3)"),
            (
                "            targets, row_targets = centred(whole, self.center), sinkhorn(rows)\n",
                "            targets, row_targets = centred(whole, self.center), sinkhorn(rows, embedding.dtype)\n",
            ),
            ("            _, whole, rows = torch", "            embedding, whole, rows = torch"),
        ),
    ),
    Planted(
        name="teacher-softmax-low",
        healthy="            targets, row_targets = centred(whole, self.center), sinkhorn(rows)\n",
        planted="            targets, row_targets = centred(whole.to(embedding.dtype) / TEACHER_TEMPERATURE, self.center), "
        "sinkhorn(rows)  # culprit\n",
        precisions=BF16,
        part="function:centred",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="Scores over a temperature of 0.04 reach 15, where bfloat16 steps by 0.06: each target is off by several percent after the softmax.",
        source="https://github.com/jingyaogong/minimind/pull/812",
        more=(
            ("            _, whole, rows = torch", "            embedding, whole, rows = torch"),
            (
                "    return F.softmax((scores.float() - center.float()) / TEACHER_TEMPERATURE, dim=-1)\n",
                "    return F.softmax(scores.float() - center.float() / TEACHER_TEMPERATURE, dim=-1)\n",
            ),
        ),
    ),
    Planted(
        name="patches-summed-low",
        healthy="    return x.mean(1)\n",
        planted="""    total = torch.zeros_like(x[:, 0])
    for patch in x.unbind(1):
        total = total + patch  # culprit
    return total / x.shape[1]
""",
        precisions=LOW,
        part="function:pooled",
        rules=("local-drift", "absorption"),
        why="A running sum over 384 patches is kept low, so every patch that is added costs another rounding of the growing sum.",
        source="https://github.com/pytorch/executorch/pull/20089",
    ),
    Planted(
        name="neighbour-distance-from-cosine",
        healthy="    return (unit - unit[neighbour]).norm(dim=-1)\n",
        planted="    cosine = (unit * unit[neighbour]).sum(-1).to(embedding.dtype)  # culprit\n"
        "    return (2 - 2 * cosine).clamp(min=1e-12).sqrt().float()  # culprit\n",
        precisions=BF16,
        part="function:nearest",
        rules=("cancellation", "amplified-rounding", "vanished-constant"),
        why="Neighbours are almost parallel, so their cosine is close to 1 and 2 - 2 * cosine is made of its rounding error; the "
        "distance is zero for many.",
        source="https://github.com/facebookresearch/dinov2/issues/492",
    ),
    Planted(
        name="teacher-average-low",
        healthy="    return decay * average + (1 - decay) * weight.detach().float()\n",
        planted="    return average.to(weight.dtype).lerp(weight.detach(), 1 - decay)  # culprit\n",
        precisions=("bf16-true",),
        part="function:distance_moved",
        rules=("absorption", "lost-update"),
        why="The teacher is kept as the student is stored, where 0.4 percent of a small difference is below half of the last digit: it never moves.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
    ),
]
