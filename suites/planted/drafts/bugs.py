"""Bugs of drafting: small differences of chances, ratios of them, running shares, a slope made of what was rounded."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="leftover-low",
        healthy="    more = (chances.float() - drafted.float()).clamp_min(0)\n",
        planted="    more = (chances.to(like.dtype) - drafted.to(like.dtype)).clamp_min(0)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:leftover",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A good draft's chances differ by a few percent from the model's, and bfloat16 knows each by half a percent.",
        source="https://github.com/vllm-project/vllm/pull/46665",
    ),
    Planted(
        name="margin-low",
        healthy="    ours, theirs = (each.gather(-1, words.unsqueeze(-1)).squeeze(-1).float().sum(-1) for each in (log_chances, log_drafted))\n",
        planted="    ours, theirs = (each.gather(-1, words.unsqueeze(-1)).squeeze(-1).to(like.dtype) for each in (log_chances, log_drafted))\n"
        "    ours, theirs = ours.sum(-1), theirs.sum(-1)  # culprit\n",
        precisions=BF16,
        part="function:margin",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A text's logarithm is near -900, where bfloat16 moves by 4, and the model and the draft differ by a few.",
        source="https://github.com/meta-pytorch/torchforge/pull/237",
        more=(("    return (ours - theirs).float()\n", "    return (ours - theirs).float()  # culprit\n"),),
    ),
    Planted(
        name="nucleus-low",
        healthy="    ordered, places = chances.float().sort(-1, descending=True)\n",
        planted="    ordered, places = chances.to(like.dtype).sort(-1, descending=True)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:nucleus",
        rules=("decision-flip", "absorption", "accumulated-drift", "local-drift"),
        why="Near nine tenths bfloat16 moves by 0.004, which is as much as two words have: other words are drawn from.",
        source="https://github.com/ROCm/AMDMIGraphX/pull/3817",
        more=(
            (
                "    before = ordered.cumsum(-1) - ordered\n",
                "    before = ordered.cumsum(-1) - ordered  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="slope-from-rounded-tangent",
        healthy="        ctx.save_for_backward(x)\n        return x.float().tanh().to(x.dtype)\n",
        planted="        ctx.save_for_backward(x.float().tanh().to(x.dtype))  # culprit\n        return x.float().tanh().to(x.dtype)\n",
        precisions=BF16,
        part="gradient:drafts.0.0.weight",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Most tangents are near one, where bfloat16 has steps of 0.004: one less their square, the slope, is made of their rounding.",
        source="https://github.com/pytorch/pytorch/issues/162907",
        more=(("        slope = 1 - x.float().tanh().square()\n", "        slope = 1 - x * x  # culprit\n"),),
    ),
]
