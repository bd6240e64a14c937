"""Bugs of T5 and its relatives."""

from __future__ import annotations

from planted_bug import Planted

BUGS = [
    Planted(
        name="bucket-log-low",
        healthy="    steps = torch.log(distance.float().clamp(min=1) / near) / math.log(FARTHEST / near) * (buckets - near)\n",
        planted="    steps = torch.log(distance.to(dtype).clamp(min=1) / near) / math.log(FARTHEST / near) * (buckets - near)  # culprit\n",
        more=(
            (
                "    far = (near + steps.long()).clamp(max=buckets - 1)\n",
                "    far = (near + steps.long()).clamp(max=buckets - 1)  # culprit\n",
            ),
        ),
        precisions=("bf16-true",),
        part="encoder.0.attention",
        rules=("decision-flip", "integer-rounding", "amplified-rounding"),
        why="A logarithm that should be a whole number is rounded below it or above, and the cast puts the distance into another bucket.",
        source="https://github.com/mindspore-lab/mindone/pull/670",
    ),
    Planted(
        name="bucket-positions-low",
        healthy="    relative = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]\n",
        planted="    relative = torch.arange(keys, dtype=dtype)[None, :] - torch.arange(queries, dtype=dtype)[:, None]  # culprit\n",
        more=(("offset = BUCKETS, torch.zeros_like(relative)\n", "offset = BUCKETS, torch.zeros_like(relative, dtype=torch.long)\n"),),
        precisions=("bf16-true",),
        part="encoder.0.attention",
        rules=("integer-rounding",),
        why="Beyond position 256 neighbours have one position, and distances are off by one or two: near tokens are mistaken for one another.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="feed-out-in-float16",
        healthy=(
            '        with torch.autocast("cpu", enabled=False):\n'
            "            return F.linear(hidden.float(), self.out.weight.float())\n"
        ),
        planted="        return self.out(hidden)  # culprit\n",
        precisions=("16-mixed",),
        part="encoder.0.feed",
        rules=("overflow", "nan"),
        why="The hidden activations of trained T5 reach thousands, and their sum leaves float16: Inf, then NaN in the next norm.",
        source="https://github.com/huggingface/transformers/issues/5651",
    ),
    Planted(
        name="mask-added",
        healthy="    return scores.float().masked_fill(~mask, torch.finfo(torch.float32).min)\n",
        planted="    return scores + (1 - mask.to(scores.dtype)) * -1e9  # culprit\n",
        more=(
            (
                "            scores = scores + self.bias(buckets).permute(2, 0, 1)\n",
                "            scores = scores + self.bias(buckets).permute(2, 0, 1).to(scores.dtype)\n",
            ),
        ),
        precisions=("16-mixed",),
        part="decoder.0.cross",
        rules=("vanished-constant", "overflow", "nan"),
        why="-1e9 is -Inf in float16. A row without a token to look at has only -Inf, and its softmax is NaN.",
        source="https://github.com/huggingface/transformers/pull/17306",
    ),
]
