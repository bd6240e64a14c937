"""Bugs of a language model with latent attention: positions, counts of experts, a large channel, sums of many tokens."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="positions-low",
        healthy="    angles = positions.float()[..., None] * yarn_frequencies()\n",
        planted="    angles = positions.to(low).float()[..., None] * yarn_frequencies()  # culprit\n",
        precisions=BF16,
        part="function:tables",
        rules=("integer-rounding",),
        why="Beyond 256 bfloat16 has every second position, and beyond 1024 every eighth.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="angles-low",
        healthy="    angles = positions.float()[..., None] * yarn_frequencies()\n    return angles.cos(), angles.sin()\n",
        planted="    angles = (positions.float()[..., None] * yarn_frequencies()).to(low)  # culprit\n"
        "    return angles.float().cos(), angles.float().sin()\n",
        precisions=ALL,
        part="function:tables",
        rules=("amplified-rounding", "accumulated-drift", "local-drift", "integer-rounding"),
        why="An angle of 1600 is known to eight in bfloat16 and to one in float16.",
        source="https://github.com/huggingface/transformers/issues/25681",
    ),
    Planted(
        name="frequencies-low",
        healthy="    angles = positions.float()[..., None] * yarn_frequencies()\n",
        planted="    frequencies = yarn_frequencies().to(low)  # culprit\n    angles = positions.float()[..., None] * frequencies.float()\n",
        precisions=ALL,
        part="function:tables",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="A frequency is off by a 500th, and the angle of position 1600 by three.",
        source="https://github.com/huggingface/transformers/issues/25681",
    ),
    Planted(
        name="queue-places-low",
        healthy="    return ((taken.cumsum(0) - 1) * taken).sum(-1)\n",
        planted="    before = (taken.cumsum(0) - 1).to(low)  # culprit\n    return (before.long() * taken).sum(-1)\n",
        precisions=BF16,
        part="experts",
        rules=("integer-rounding", "absorption", "local-drift", "accumulated-drift", "decision-flip"),
        why="An expert is asked more than 300 times, and bfloat16 counts to 256: tokens have the places of others.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
    Planted(
        name="shares-low",
        healthy="    return shares - 1 / EXPERTS\n",
        planted="    return (shares.to(low) - 1 / EXPERTS).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:imbalance",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A share of a quarter is known to a 4096th, and it is off by some hundredths at most.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="large-channel-overflows",
        healthy="        wide = x.float()\n",
        planted="        wide = x.to(working_dtype(x))\n",
        more=(
            (
                "        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)\n",
                "        wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)  # culprit\n",
            ),
        ),
        precisions=("16-mixed",),
        part="norms.0",
        rules=("overflow",),
        why="The square of a channel of 2400 is beyond float16, and the norm of each token is nought.",
        source="https://github.com/aqlaboratory/openfold/pull/295",
    ),
    Planted(
        name="partition-overflows",
        healthy="    return torch.logsumexp(logits.float(), -1)\n",
        planted="    return logits.half().exp().sum(-1).log().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:log_partition",
        rules=("overflow",),
        why="Logits reach more than 11, whose exponential is beyond float16.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="losses-absorbed",
        healthy="    return losses.float().mean()\n",
        planted="    total = torch.zeros((), dtype=low)\n    for each in losses:\n        total = total + each.to(low)  # culprit\n"
        "    return total.float() / len(losses)\n",
        precisions=BF16,
        part="function:averaged",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="Six hundred losses of some ten are added one by one; from 1024 on bfloat16 moves by eight.",
        source="https://github.com/google-research/last/pull/43",
    ),
]

HARMLESS = [
    Harmless(
        name="tables-rounded",
        healthy="    return angles.cos(), angles.sin()\n",
        changed="    return angles.cos().to(low), angles.sin().to(low)\n",
        precisions=ALL,
        why="Cosines of exact angles are rounded once.",
    ),
    Harmless(
        name="positions-in-float16",
        healthy="    angles = positions.float()[..., None] * yarn_frequencies()\n",
        changed="    angles = positions.half().float()[..., None] * yarn_frequencies()\n",
        precisions=ALL,
        why="float16 holds each whole number up to 2048, and places end at 1660.",
    ),
    Harmless(
        name="chosen-table-low",
        healthy="    taken = F.one_hot(chosen.flatten(), EXPERTS)\n",
        changed="    taken = F.one_hot(chosen.flatten(), EXPERTS).to(low).long()\n",
        precisions=ALL,
        why="Noughts and ones.",
    ),
    Harmless(
        name="shares-rounded",
        healthy="    return shares - 1 / EXPERTS\n",
        changed="    return (shares - 1 / EXPERTS).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="weights-rounded-first",
        healthy="        weights = scores.softmax(-1)\n",
        changed="        weights = (scores - scores.amax(-1, keepdim=True)).softmax(-1).to(v.dtype)\n",
        precisions=ALL,
        why="The highest score is taken off in float32, and weights are rounded once before a low product.",
    ),
    Harmless(
        name="mask-to-ten-thousand",
        healthy='dtype=torch.bool).triu(1), float("-inf"))\n',
        changed="dtype=torch.bool).triu(1), -1e4)\n",
        precisions=ALL,
        why="Ten thousand is far below each score, and the exponential is zero.",
    ),
    Harmless(
        name="partition-shifted-low",
        healthy="    return torch.logsumexp(logits.float(), -1)\n",
        changed="    most = logits.amax(-1, keepdim=True)\n    shifted = (logits - most).to(low).float()\n"
        "    return (most + shifted.exp().sum(-1, keepdim=True).log()).squeeze(-1)\n",
        precisions=BF16,
        why="What is near the highest logit is rounded by little, and what is far from it counts for little.",
    ),
    Harmless(
        name="losses-in-float64",
        healthy="    return losses.float().mean()\n",
        changed="    return losses.to(low).double().mean().float()\n",
        precisions=ALL,
        why="Each loss is rounded once and by itself, and the sum is exact.",
    ),
]
