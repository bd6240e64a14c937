"""Bugs planted into the contrastive training of images and texts."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="mask-of-large-number",
        healthy="    scores = scores + (1 - present.float())[:, None, None] * -1e9\n",
        planted="    scores = scores.to(q.dtype) + (1 - present.to(q.dtype))[:, None, None] * -1e9  # culprit\n",
        precisions=("16-mixed",),
        part="function:masked_attention",
        rules=("overflow", "nan", "vanished-constant"),
        why="-1e9 is minus infinity in float16, so the softmax of a caption without a single token is NaN.",
        source="https://github.com/huggingface/transformers/pull/17306",
    ),
    Planted(
        name="length-low",
        healthy="    x = x.float()\n    return x / (x.square().sum(-1, keepdim=True).sqrt() + eps)\n",
        planted="""    squares = torch.einsum("nd,nd->n", x, x)  # culprit
    return x / (squares.sqrt()[:, None] + eps)  # culprit
""",
        precisions=("16-mixed",),
        part="function:unit",
        rules=("overflow", "nan", "vanished-constant", "underflow"),
        why="The squares of a feature sum to more than 65504 in float16, and an empty place of the bank is divided by 1e-8, which is zero.",
        source="https://github.com/pytorch/pytorch/issues/32137",
    ),
    Planted(
        name="logits-low",
        healthy="        return scale * (images.float() @ texts.float().T)\n",
        planted="        return (scale * (images @ texts.T)).to(low)  # culprit\n",
        precisions=LOW,
        part="function:contrastive",
        rules=("amplified-rounding", "cancellation", "accumulated-drift"),
        why="All similarities are high, so logits near 90 differ by a few units, and low they are stored in steps of 0.5 before the softmax.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
        more=(
            (
                "def similarities(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor)",
                "def similarities(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor, low: torch.dtype)",
            ),
            ("scale_of(self.logit_scale))\n", "scale_of(self.logit_scale), texts.dtype)\n"),
        ),
    ),
    Planted(
        name="expanded-distances-low",
        healthy="    a, b = a.float(), b.float()\n    return (a[:, None] - b[None]).square().sum(-1)\n",
        planted="    squares = a.square().sum(-1)[:, None] + b.square().sum(-1)\n    return squares - 2 * (a @ b.T)  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:squared_distances",
        rules=("cancellation", "amplified-rounding", "accumulated-drift"),
        why="Autocast computes the product of unit vectors low; 2 - 2 * cosine of nearly parallel ones is then made of its rounding, "
        "and may be negative.",
        source="https://github.com/lucidrains/vector-quantize-pytorch/issues/106",
    ),
]
