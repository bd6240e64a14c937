"""Bugs of long convolutions: rounded times and positions, counts and sums that absorb."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="times-low",
        healthy="    t = torch.arange(length, device=like.device, dtype=torch.float32) / (length - 1)\n",
        planted="    t = torch.arange(length, device=like.device, dtype=torch.bfloat16) / (length - 1)  # culprit\n",
        precisions=BF16,
        part="function:position_features",
        rules=("integer-rounding", "amplified-rounding", "accumulated-drift", "local-drift"),
        why="Times are rounded to a 256th of themselves, and the fastest wave turns fifteen times.",
        source="https://github.com/finegrain-ai/refiners/pull/449",
    ),
    Planted(
        name="angles-low",
        healthy="    angles = 2 * math.pi * t[:, None] * bands\n",
        planted="    angles = (2 * math.pi * t[:, None] * bands).half()  # culprit\n",
        precisions=("16-mixed",),
        part="function:position_features",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="Angles up to 94 are known to a 32nd in float16.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="positions-counted-low",
        healthy="    position_ids = attention_mask.long().cumsum(-1) - 1\n",
        planted="    position_ids = (attention_mask.cumsum(-1, dtype=torch.bfloat16) - 1).long()  # culprit\n",
        precisions=BF16,
        part="embed_positions",
        rules=("integer-rounding", "absorption", "decision-flip"),
        why="bfloat16 holds every whole number up to 256 only, and there are 512 positions.",
        source="https://github.com/huggingface/transformers/pull/47238",
    ),
    Planted(
        name="losses-summed-low",
        healthy="    return losses.sum() / there.sum()\n",
        planted="    total = losses.new_zeros((), dtype=torch.bfloat16)\n    for row in losses.flatten():\n"
        "        total = total + row.to(torch.bfloat16)  # culprit\n    return total.float() / there.sum()\n",
        precisions=("bf16-mixed",),
        part="function:mean_of_labelled",
        rules=("absorption", "accumulated-drift", "local-drift"),
        why="A running sum in bfloat16 stands still once it is 256 times a token's loss.",
        source="https://github.com/pytorch/pytorch/issues/61098",
    ),
]

HARMLESS = [
    Harmless(
        name="bands-low",
        healthy="    bands = torch.linspace(1e-4, num_bands - 1, num_bands, device=like.device, dtype=torch.float32)\n",
        changed="    bands = torch.arange(num_bands, device=like.device, dtype=torch.bfloat16).float()\n    bands[0] = 1e-4\n",
        precisions=ALL,
        why="Whole numbers up to 15.",
    ),
    Harmless(
        name="window-rounded",
        healthy="        return torch.exp(t * self.deltas.float()) + 0.01\n",
        changed="        return (torch.exp(t * self.deltas.float()) + 0.01).to(self.mlp[0].weight.dtype).float()\n",
        precisions=ALL,
        why="One rounding of a factor of what a layer has made; under autocast weights are of float32, and it is none.",
    ),
    Harmless(
        name="filter-rounded",
        healthy="    k_f = torch.fft.rfft(k.float(), n=2 * length) / (2 * length)\n",
        changed="    k_f = torch.fft.rfft(k.to(u.dtype).float(), n=2 * length) / (2 * length)\n",
        precisions=ALL,
        why="A filter is rounded as a convolution's weight is.",
    ),
    Harmless(
        name="positions-counted-short",
        healthy="    position_ids = attention_mask.long().cumsum(-1) - 1\n",
        changed="    position_ids = (attention_mask.cumsum(-1, dtype=torch.half) - 1).long()\n",
        precisions=ALL,
        why="float16 holds every whole number up to 2048.",
    ),
    Harmless(
        name="losses-rounded",
        healthy="    losses, there = losses.float(), labels != -100\n",
        changed="    losses, there = losses.to(torch.bfloat16).float(), labels != -100\n",
        precisions=BF16,
        why="A thousand losses are rounded once, each for itself, and their mean has a thirtieth of a rounding.",
    ),
    Harmless(
        name="labels-counted-low",
        healthy="    return losses.sum() / there.sum()\n",
        changed="    return losses.sum() / there.view(2, 4, -1).sum(-1).half().sum()\n",
        precisions=ALL,
        why="Counts of blocks are up to 128, and there are 894 labels, which float16 holds.",
    ),
    Harmless(
        name="mask-low",
        healthy="            hidden = layer(hidden, attention_mask.to(hidden.dtype))\n",
        changed="            hidden = layer(hidden, attention_mask.to(torch.bfloat16).to(hidden.dtype))\n",
        precisions=ALL,
        why="Noughts and ones.",
    ),
    Harmless(
        name="short-sum-in-a-loop",
        healthy="        return self.out_proj(y.transpose(1, 2))\n",
        changed="        return self.out_proj(sum(part for part in (y * 0.5, y * 0.25, y * 0.25)).transpose(1, 2))\n",
        precisions=ALL,
        why="A half and two quarters of a number are exact, and so are their sums.",
    ),
]
