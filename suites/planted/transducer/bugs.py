"""Bugs of a transducer: lengths and times in low formats, floors that vanish, a lattice kept low, gradients cut with the loss scale on them."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="frames-low",
        healthy='    return torch.div(samples, 160, rounding_mode="floor")\n',
        planted="    return (samples.to(low) / 160).long()  # culprit\n",
        precisions=BF16,
        part="function:normalised",
        rules=("integer-rounding", "decision-flip", "amplified-rounding"),
        why="Of 38239 samples bfloat16 knows every 256th, and of 238.99 frames whole ones: they become 239.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="floor-vanishes",
        healthy="    return 10 * torch.log10(energies.float().clamp(min=1e-10))\n",
        planted="    return 10 * torch.log10(energies.to(low).clamp(min=1e-10)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:decibels",
        rules=("vanished-constant", "nan", "overflow", "underflow"),
        why="The floor of 1e-10 is zero in float16, and the logarithm of silence is minus infinity.",
        source="https://github.com/qiuqiangkong/audioset_tagging_cnn/issues/17",
    ),
    Planted(
        name="variance-by-moments",
        healthy="    variance = ((x - mean).square() * valid).sum(1, keepdim=True) / count\n",
        planted="    second = ((x * valid).to(low).square().sum(1, keepdim=True) / count).to(low)  # culprit\n"
        "    variance = (second - mean.to(low).square()).float()  # culprit\n",
        precisions=BF16,
        part="function:normalised",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Decibels of 17 with a spread of 3: 298 less 289 is known to two.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="pause-low",
        healthy="    return (start - before).float() / 1000\n",
        planted="    return ((start.to(low) - before.to(low)) / 1000).float()  # culprit\n",
        precisions=ALL,
        part="function:pause",
        rules=("integer-rounding", "cancellation", "overflow", "nan", "amplified-rounding"),
        why="Of millions of milliseconds bfloat16 knows every 8192nd, and float16 none.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="mask-infinite",
        healthy="        scores = scores.masked_fill(~seen.unsqueeze(1), torch.finfo(scores.dtype).min)\n",
        planted="        scores = scores + (~seen.unsqueeze(1)).to(scores.dtype) * -1e9  # culprit\n",
        precisions=("16-mixed",),
        part="result",
        rules=("overflow", "nan", "vanished-constant"),
        why="A billion is infinite in float16, and a frame of padding that sees no frame has a softmax of nothing but minus infinity.",
        source="https://github.com/huggingface/transformers/pull/17306",
    ),
    Planted(
        name="log-of-softmax",
        healthy="    return functional.log_softmax(12 * logits.float(), -1)\n",
        planted="    return torch.log(torch.softmax(12 * logits.float(), -1).to(low).float())  # culprit\n",
        precisions=("16-mixed",),
        part="function:log_chances",
        rules=("underflow", "nan", "overflow", "amplified-rounding"),
        why="A chance below 3e-8 is zero in float16, and those below 6e-5 have few digits.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="lattice-low",
        healthy="    along = functional.pad(emit.float().cumsum(-1), (1, 0))\n    blank = blank.float()\n",
        planted="    along = functional.pad(emit.to(low).cumsum(-1), (1, 0))\n    blank = blank.to(low)\n",
        precisions=ALL,
        part="gradients",
        rules=("absorption", "accumulated-drift", "amplified-rounding", "cancellation", "local-drift"),
        why="Logarithms of 150 are rounded to a half at each frame, so chances are wrong by half.",
        source="https://github.com/k2-fsa/icefall/pull/283",
        more=(
            (
                "        stay = alphas[-1] + blank[:, turn - 1]\n",
                "        stay = alphas[-1] + blank[:, turn - 1]  # culprit\n",
            ),
            (
                "        alphas.append(along[:, turn] + torch.logcumsumexp(stay - along[:, turn], -1))\n",
                "        alphas.append(along[:, turn] + torch.logcumsumexp(stay - along[:, turn], -1))  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="progress-low",
        healthy="    return torch.softmax(alphas.float(), -1)\n",
        planted="    return torch.softmax(alphas.float(), -1).to(low).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:durations",
        rules=("underflow", "nan"),
        why="A label that is never reached has chances of zero in float16 at all times, and its mean time is zero by zero.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="cut-with-the-scale-on",
        healthy="        ctx.save_for_backward(gradient.clamp(-LIMIT, LIMIT))\n",
        planted="        ctx.save_for_backward(gradient)\n",
        precisions=("16-mixed",),
        part="gradients",
        rules=("scaler-order", "wrong-scale", "clipping", "local-drift"),
        why="The gradient that comes back has the loss scale on it, so each number is cut at the limit and keeps nothing but its sign.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
        more=(
            (
                "        return gradient[:, None, None, None] * own, None, None\n",
                "        return (gradient[:, None, None, None] * own).clamp(-LIMIT, LIMIT), None, None  # culprit\n",
            ),
        ),
    ),
]

HARMLESS = [
    Harmless(
        name="places-low",
        healthy="        places = torch.arange(x.shape[1], dtype=torch.float32)\n",
        changed="        places = torch.arange(x.shape[1], dtype=low).float()\n",
        precisions=ALL,
        why="There are 40 places, and each format holds whole numbers up to 256 at least.",
    ),
    Harmless(
        name="mask-of-thousands",
        healthy="        scores = scores.masked_fill(~seen.unsqueeze(1), torch.finfo(scores.dtype).min)\n",
        changed="        scores = scores + (~seen.unsqueeze(1)).to(scores.dtype) * -1e4\n",
        precisions=ALL,
        why="Ten thousand is finite in each format and far enough; what rows of padding have instead is cut off after the blocks.",
    ),
    Harmless(
        name="chances-low",
        healthy="    return torch.softmax(alphas.float(), -1)\n",
        changed="    return torch.softmax(alphas.float(), -1).to(low).float()\n",
        precisions=BF16,
        why="Chances are rounded once, and bfloat16 holds the small ones.",
    ),
]
