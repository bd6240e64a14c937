"""Bugs of a loop of two players: large styles, an average that stands still, slopes with a loss scale, small costs."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")
LOOP = ("watch",)

BUGS = [
    Planted(
        name="styles-overflow",
        healthy="    w = weight.float().unsqueeze(0) * styles.float()[:, None, :, None, None]\n"
        "    return w * (w.square().sum([2, 3, 4], keepdim=True) + 1e-8).rsqrt()\n",
        planted="    w = weight.half().unsqueeze(0) * styles.half()[:, None, :, None, None]\n"
        "    return (w * ((w * w).sum([2, 3, 4], keepdim=True) + 1e-8).rsqrt()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:demodulated",
        rules=("overflow",),
        why="A hundred products of a style of 120 and a weight have squares that add up to a million.",
        source="https://github.com/aqlaboratory/openfold/pull/295",
        through=LOOP,
    ),
    Planted(
        name="average-stands-still",
        healthy="    return old + rate * (new.float() - old)\n",
        planted="    low = torch.bfloat16\n    return (old.to(low) + (rate * (new.float() - old)).to(low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="parameter:average.first.weight",
        rules=("absorption", "lost-update", "local-drift", "accumulated-drift", "cancellation", "amplified-rounding"),
        why="Two thousandths of a small difference are less than half a step of bfloat16.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
        through=LOOP,
    ),
    Planted(
        name="slopes-with-the-scale",
        healthy="    slopes = len(real) * slopes.float() / scaler.get_scale()\n    return slopes.square().sum([1, 2, 3])\n",
        planted="    slopes = len(real) * slopes.float()\n    return slopes.square().sum([1, 2, 3])  # culprit\n",
        precisions=("16-mixed",),
        part="function:squared_slopes",
        rules=("scaler-order", "overflow", "scaler-skip", "scaler-collapse"),
        more=(
            (
                "adversarial(-on_fake, low).mean() + penalty\n",
                "adversarial(-on_fake, low).mean() + penalty  # culprit\n",
            ),
        ),
        why="Slopes of a scaled score have the loss scale, and the penalty its square.",
        source="https://github.com/fla-org/flash-linear-attention/pull/963",
        through=LOOP,
    ),
    Planted(
        name="spread-by-moments",
        healthy="    return ((x - x.mean(0)).square().mean(0) + 1e-8).sqrt().mean()\n",
        planted="    x = x.to(low)\n    return ((x.square().mean(0) - x.mean(0).square()).float().clamp_min(0) + 1e-8).sqrt().mean()  # culprit\n",
        precisions=MIXED,
        part="function:spread",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Squares of eight less the square of eight are known to a quarter in bfloat16, and the variance is a tenth.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
        through=LOOP,
    ),
    Planted(
        name="rate-vanishes",
        healthy="    return 1 - kept\n",
        planted="    return (1 - kept.to(low)).float()  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:averaging_rate",
        rules=("cancellation", "amplified-rounding", "local-drift", "vanished-constant"),
        why="What is kept of the old weights is 0.998, which is one in bfloat16.",
        source="https://github.com/facebookresearch/dinov2/pull/583",
        through=LOOP,
    ),
    Planted(
        name="images-not-counted",
        healthy="    return seen + images\n",
        planted="    return (seen.to(torch.bfloat16) + images).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="parameter:seen",
        rules=("absorption", "integer-rounding"),
        why="Of half a million images bfloat16 knows every 2048th, so eight more are none.",
        source="https://github.com/ai-safety-foundation/sparse_autoencoder/pull/42",
        through=LOOP,
    ),
    Planted(
        name="ratio-stands-still",
        healthy="    return ratio + 0.003 * (logits.float().sign().mean() - ratio)\n",
        planted="    ratio = ratio.to(torch.bfloat16)\n    return (ratio + 0.003 * (logits.to(low).sign().mean() - ratio)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="parameter:ratio",
        rules=("absorption",),
        why="A ratio of 0.62 moves by a thousandth, which is less than half a step of bfloat16.",
        source="https://github.com/facebookresearch/dinov2/pull/583",
        through=LOOP,
    ),
]

HARMLESS = [
    Harmless(
        name="filters-rounded",
        healthy="    return w * (w.square().sum([2, 3, 4], keepdim=True) + 1e-8).rsqrt()\n",
        changed="    return (w * (w.square().sum([2, 3, 4], keepdim=True) + 1e-8).rsqrt()).to(torch.bfloat16).float()\n",
        precisions=("bf16-mixed",),
        why="A convolution rounds its weights in any case.",
    ),
    Harmless(
        name="styles-normed-first",
        healthy="    w = weight.float().unsqueeze(0) * styles.float()[:, None, :, None, None]\n"
        "    return w * (w.square().sum([2, 3, 4], keepdim=True) + 1e-8).rsqrt()\n",
        changed="    weight = weight.float() / weight.float().abs().amax([1, 2, 3], keepdim=True) / 10\n"
        "    styles = styles.float() / styles.float().abs().amax(1, keepdim=True)\n"
        "    w = weight.half().unsqueeze(0) * styles.half()[:, None, :, None, None]\n"
        "    return (w * ((w * w).sum([2, 3, 4], keepdim=True) + 1e-8).rsqrt()).float()\n",
        precisions=("16-mixed",),
        why="Weights and styles are divided by the largest first, so squares add up to one or two; their scale is taken off again.",
    ),
    Harmless(
        name="difference-added-in-float32",
        healthy="    return old + rate * (new.float() - old)\n",
        changed="    return old + rate * (new.float() - old).to(torch.bfloat16).float()\n",
        precisions=MIXED,
        why="The difference is made and added in float32, and a five-hundredth of it is rounded once.",
    ),
    Harmless(
        name="signs-low",
        healthy="    return ratio + 0.003 * (logits.float().sign().mean() - ratio)\n",
        changed="    return ratio + 0.003 * (logits.to(low).sign().float().mean() - ratio)\n",
        precisions=MIXED,
        why="Signs are exact.",
    ),
    Harmless(
        name="images-in-thousands",
        healthy="    return seen + images\n",
        changed="    return seen + torch.tensor(images, dtype=low).float()\n",
        precisions=MIXED,
        why="Eight is eight in each format, and it is added in float32.",
    ),
    Harmless(
        name="slopes-rounded",
        healthy="    return slopes.square().sum([1, 2, 3])\n",
        changed="    return slopes.to(torch.bfloat16).float().square().sum([1, 2, 3])\n",
        precisions=MIXED,
        why="Each of 192 slopes is rounded once, and squares are added up in float32.",
    ),
    Harmless(
        name="costs-by-log1p",
        healthy="    return F.softplus(-logits.float())\n",
        changed="    return torch.log1p(torch.exp(-logits.float().abs()).to(torch.bfloat16).float()) + (-logits.float()).clamp_min(0)\n",
        precisions=("bf16-mixed",),
        why="A small exponential is rounded once, and log1p keeps it.",
    ),
    Harmless(
        name="spread-of-differences",
        healthy="    return ((x - x.mean(0)).square().mean(0) + 1e-8).sqrt().mean()\n",
        changed="    return ((x - x.mean(0)).to(low).float().square().mean(0) + 1e-8).sqrt().mean()\n",
        precisions=MIXED,
        why="Differences are made in float32, and rounded once.",
    ),
]
