"""Bugs of retrieval: rows, times, chances, lengths and losses in a low format."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="rows-low",
        healthy="    return (shops * (ITEMS // SHOPS) + items).long()\n",
        planted="    numbers = torch.stack([shops, items], -1).to(like.dtype)\n"
        "    return (numbers[..., 0] * (ITEMS // SHOPS) + numbers[..., 1]).long()  # culprit\n",
        precisions=LOW,
        part="result",
        rules=("integer-rounding", "absorption", "local-drift"),
        why="Rows are numbers to 3000, which bfloat16 knows by sixteens and float16 by twos: users are shown another item than they are "
        "said to like.",
        source="https://github.com/keras-team/keras/issues/10531",
    ),
    Planted(
        name="times-low",
        healthy="    return ((now - added) / 86400.0).float()\n",
        planted="    return ((now.to(like.dtype) - added.to(like.dtype)) / 86400.0).float()  # culprit\n",
        precisions=BF16,
        part="function:ages",
        rules=("integer-rounding", "cancellation", "amplified-rounding"),
        why="Seconds since 1970 are rounded to 97 days before one is subtracted from the other: all items are as old.",
        source="https://github.com/NVIDIA-Merlin/Merlin/issues/942",
    ),
    Planted(
        name="chances-low",
        healthy="    return torch.log(seen.float() / DRAWS).float()\n",
        planted="    return torch.log((seen.double() / DRAWS).to(like.dtype)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:log_chances",
        rules=("underflow", "overflow", "nan", "local-drift"),
        why="An item that came up twice in 50 million draws has a chance of 4e-8, which is zero or one step of float16; its logarithm "
        "is minus infinity.",
        source="https://github.com/microsoft/responsible-ai-toolbox-privacy/pull/6",
    ),
    Planted(
        name="length-eps-vanishes",
        healthy="    wide = vectors.float()\n",
        planted="    wide = vectors\n",
        precisions=("16-mixed",),
        part="function:unit",
        rules=("vanished-constant", "nan", "underflow", "overflow"),
        why="The least length, 1e-8, is zero in float16, so a user without a history divides zero by zero.",
        source="https://github.com/kornia/kornia/issues/4021",
        more=(
            (
                "    return (wide / wide.norm(dim=-1, keepdim=True).clamp_min(1e-8)).to(vectors.dtype)\n",
                "    return (wide / wide.norm(dim=-1, keepdim=True).clamp_min(1e-8)).to(vectors.dtype)  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="softmax-by-hand",
        healthy="    scores = scores.float() - chances\n    return (torch.logsumexp(scores, 1) - scores.diagonal()).float()\n",
        planted="    scores = scores - chances.to(scores.dtype)\n"
        "    return (torch.log(torch.exp(scores).sum(1)) - scores.diagonal()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="result",
        rules=("overflow", "nan"),
        why="Corrected scores reach 30; float16's exponential overflows at 11, float32's would at 88.",
        source="https://github.com/apple/coremltools/issues/2690",
    ),
]
