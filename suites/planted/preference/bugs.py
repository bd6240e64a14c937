"""Bugs of learning from preferences: chances of texts and of words, small divergences, advantages."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="text-chances-low",
        healthy="    return (chances * answered.float()).sum(-1).float()\n",
        planted="    return (chances * answered.float()).sum(-1).to(low)  # culprit\n",
        precisions=MIXED,
        part="function:margin",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="The logarithm of a text's chance is -800, where bfloat16 moves by four; policy and reference differ by less.",
        source="https://github.com/vllm-project/vllm/pull/19",
        more=(("    gained = ours - theirs\n", "    gained = ours - theirs  # culprit\n"),),
    ),
    Planted(
        name="divergence-low",
        healthy="    apart = theirs - ours\n    return (torch.expm1(apart) - apart).float()\n",
        planted="    apart = (theirs - ours).to(low)\n    return (torch.exp(apart) - 1 - apart).float()  # culprit\n",
        precisions=MIXED,
        part="function:divergence",
        rules=("cancellation", "amplified-rounding", "absorption", "local-drift"),
        why="Policy and reference differ by a fiftieth, and the estimate is half of that squared: far less than a low format's step at one.",
        source="https://github.com/ml-explore/mlx-examples/pull/1233",
    ),
    Planted(
        name="token-chances-low",
        healthy="    return logits.float().log_softmax(-1).gather(-1, words.unsqueeze(-1)).squeeze(-1)\n",
        planted="    return logits.to(low).log_softmax(-1).gather(-1, words.unsqueeze(-1)).squeeze(-1)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:margin",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Each word's chance is rounded to a thirty-second, and the policy is apart from its reference by less.",
        source="https://github.com/meta-pytorch/torchforge/pull/237",
    ),
    Planted(
        name="advantages-constant-vanishes",
        healthy="    grouped = rewards.view(-1, GROUP)\n",
        planted="    grouped = rewards.to(low).view(-1, GROUP)\n",
        precisions=("16-mixed",),
        part="function:advantages",
        rules=("vanished-constant", "nan"),
        why="All answers are as good, so nothing is divided by nothing: 1e-8 is zero in float16.",
        source="https://github.com/tulerfeng/Video-R1/issues/87",
        more=(
            (
                "    return (above / (grouped.std(-1, keepdim=True) + 1e-8)).flatten().float()\n",
                "    return (above / (grouped.std(-1, keepdim=True) + 1e-8)).flatten().float()  # culprit\n",
            ),
            (  # rewards of 101 have sixteenths in float16, and answers differ by a few of them
                "    above = grouped - grouped.mean(-1, keepdim=True)\n",
                "    above = grouped - grouped.mean(-1, keepdim=True)  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="rewards-low",
        healthy="    above = grouped - grouped.mean(-1, keepdim=True)\n",
        planted="    grouped = grouped.to(low)  # culprit\n    above = grouped - grouped.mean(-1, keepdim=True)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:advantages",
        rules=("cancellation", "amplified-rounding", "local-drift", "overflow", "nan"),
        why="Rewards of 101 are whole or a half in bfloat16, and answers differ by tenths.",
        source="https://github.com/PrimeIntellect-ai/prime-rl/pull/568",
    ),
]
