"""Bugs of a video transformer: numbers of frames in low formats, differences of rounded pixels, sums and exponentials beyond float16."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="sampled-low",
        healthy="    return begin.unsqueeze(-1) + (share * (length - 1).unsqueeze(-1)).long()\n",
        planted="    return begin.unsqueeze(-1) + (share.to(low) * (length - 1).to(low).unsqueeze(-1)).long()  # culprit\n",
        precisions=BF16,
        part="function:turned",
        rules=("integer-rounding", "decision-flip", "amplified-rounding"),
        why="Of a video of 1207 frames bfloat16 knows every eighth.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="frames-low",
        healthy="    angles = frames.float().unsqueeze(-1) * speeds\n",
        planted="    angles = frames.to(low).unsqueeze(-1) * speeds  # culprit\n",
        precisions=ALL,
        part="function:turned",
        rules=("integer-rounding", "amplified-rounding", "local-drift"),
        why="Frame 9250 is rounded to 64 in bfloat16 and to eight in float16, and the angle turns once in six.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="seconds-low",
        healthy="    seconds = frames.double() / RATE\n    return functional.pad(seconds.diff(dim=-1), (0, 1), value=0.1).float()\n",
        planted="    seconds = (frames.double() / RATE).to(low)  # culprit\n"
        "    return functional.pad(seconds.diff(dim=-1), (0, 1), value=0.1).float()  # culprit\n",
        precisions=ALL,
        part="function:gaps",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="After 300 seconds bfloat16 knows every second one, and frames are two thirds of one apart.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="motion-low",
        healthy="    scaled = (video.float() / 255 - MEAN) / SPREAD\n",
        planted="    scaled = ((video / 255 - MEAN) / SPREAD).to(low)  # culprit\n",
        precisions=ALL,
        part="function:motion",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="One level of 255 is 0.017 of pixels of about one, and bfloat16 knows a 128th of them.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
        more=(
            (
                "    return functional.pad(scaled[:, 1:] - scaled[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))\n",
                "    return functional.pad(scaled[:, 1:] - scaled[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0)).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="variance-by-moments",
        healthy="    variance = (patches - mean).square().mean(-1, keepdim=True)\n",
        planted="    variance = (patches.to(low).square().mean(-1, keepdim=True) - mean.to(low).square()).float().clamp(min=0)  # culprit\n",
        precisions=BF16,
        part="function:targets",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Bright patches have a mean of 0.7 and a variance of 0.002, which is less than a step of bfloat16 at a half.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="guard-vanishes",
        healthy="    return (patches - mean) / torch.sqrt(variance + 1e-8)\n",
        planted="    return (patches - mean) / torch.sqrt(variance.to(low) + 1e-8)  # culprit\n",
        precisions=("16-mixed",),
        part="function:targets",
        rules=("vanished-constant", "nan", "underflow"),
        why="A patch of one colour has no variance, and a hundred-millionth is zero in float16.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
    Planted(
        name="softmax-overflows",
        healthy="    return torch.softmax(scores.float(), -1)\n",
        planted="    raised = torch.exp(scores.to(low))  # culprit\n    return (raised / raised.sum(-1, keepdim=True)).float()\n",
        precisions=("16-mixed",),
        part="function:attention",
        rules=("overflow", "nan"),
        why="A frame's score with one like it is 14 and more, and the exponential of 12 is beyond float16.",
        source="https://github.com/facebookresearch/xformers/pull/98",
    ),
    Planted(
        name="sum-overflows",
        healthy="    errors = apart.square() * hidden.unsqueeze(-1)\n",
        planted="    errors = apart.to(low).square() * hidden.to(low).unsqueeze(-1)\n",
        precisions=("16-mixed",),
        part="loss",
        rules=("overflow", "nan"),
        why="A sum of 20 000 squares of some tens is beyond float16, however small their mean.",
        source="https://github.com/pytorch/pytorch/issues/43211",
        more=(
            (
                "    return errors.sum() / (hidden.sum() * apart.shape[-1])\n",
                "    return errors.sum().float() / (hidden.sum() * apart.shape[-1])  # culprit\n",
            ),
        ),
    ),
]

HARMLESS = [
    Harmless(
        name="motion-of-levels-low",
        healthy="    return functional.pad(scaled[:, 1:] - scaled[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))\n",
        changed="    levels = video.to(low)\n    change = (levels[:, 1:] - levels[:, :-1]).float() / 255 / SPREAD\n"
        "    return functional.pad(change, (0, 0, 0, 0, 0, 0, 1, 0)) + 0 * scaled\n",
        precisions=ALL,
        why="Levels are whole numbers up to 255, which each format holds, and so are their differences.",
    ),
    Harmless(
        name="table-low",
        healthy="    return angles.cos(), angles.sin()\n",
        changed="    return angles.cos().to(low).float(), angles.sin().to(low).float()\n",
        precisions=ALL,
        why="Cosines of exact angles are rounded once.",
    ),
    Harmless(
        name="few-counted-low",
        healthy="    return errors.sum() / (hidden.sum() * apart.shape[-1])\n",
        changed="    count = sum(each.to(low).sum().float() for each in hidden[:, 0])\n    return errors.sum() / (count * TIMES * apart.shape[-1])\n",
        precisions=ALL,
        why="Of 25 places each format can count how many are hidden.",
    ),
]
