"""Bugs of a raw picture: counts just above the black level, squares of a sensor's coordinates, variances as differences of means."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
BLACK = "    return F.pixel_unshuffle((raw - BLACK).float()[:, None], 2)\n"
SQUARE = "    square = (across[None] ** 2 + down[:, None] ** 2).float()\n"
SSIM = '    with torch.autocast("cpu", enabled=False):\n        one, other = one.float(), other.float()\n'
SSIM_LOW = '    with torch.autocast("cpu", enabled=False):\n        one, other = one.to(dtype), other.to(dtype)  # culprit\n'
MEANS = "        mean, aim = local(one), local(other)\n"
SPREADS = (
    "        spread = local(one * one) - mean * mean\n"
    "        wanted = local(other * other) - aim * aim\n"
    "        both = local(one * other) - mean * aim\n"
)
STOPS = "    return torch.exp2(stops.float() / 256)\n"
RATIO = "    ratio = (exposures[:, 0].float() / exposures[:, 1].float()).view(-1, 1, 1, 1)\n"

BUGS = [
    Planted(
        name="black-low",
        healthy=BLACK,
        planted="    return F.pixel_unshuffle((raw.to(dtype) - BLACK).float()[:, None], 2)  # culprit\n",
        precisions=ALL,
        part="function:without_black",
        rules=WHOLE,
        why="A dark picture is 2048 counts and some dozens, which bfloat16 knows to sixteen and float16 to two.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="ssim-low",
        healthy=SSIM,
        planted=SSIM_LOW,
        more=((SPREADS, SPREADS.replace("\n", "  # culprit\n")),),
        precisions=ALL,
        part="function:ssim",
        rules=DRIFTS,
        why="Of a smooth picture the variance in a window is a thousandth of the squares it is the difference of.",
        source="https://github.com/Lightning-AI/torchmetrics/issues/1290",
    ),
    Planted(
        name="shading-overflows",
        healthy=SQUARE,
        planted="    square = across.to(dtype)[None] ** 2 + down.to(dtype)[:, None] ** 2  # culprit\n",
        precisions=("16-mixed",),
        part="function:shading",
        rules=("overflow", "nan"),
        why="Squares of coordinates from 256 on are infinite in float16.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="aim-beyond-float16",
        healthy="        wanted = aim.float() / 65_535\n",
        planted="        wanted = (aim.to(dtype) * 2).float() / 131_070  # culprit\n",
        precisions=("16-mixed",),
        part="loss",
        rules=("overflow", "nan"),
        why="Twice a 16-bit count is infinite in float16.",
        source="https://github.com/qubvel-org/segmentation_models.pytorch/issues/463",
    ),
]

HARMLESS = [
    Harmless(
        name="black-rounded-late",
        healthy=BLACK,
        changed="    return F.pixel_unshuffle((raw - BLACK).to(dtype).float()[:, None], 2)\n",
        precisions=ALL,
        why="Whole counts above the black level are below 256 here, and exact.",
    ),
    Harmless(
        name="stops-low",
        healthy=STOPS,
        changed="    return torch.exp2(stops.to(dtype).float() / 256)\n",
        precisions=ALL,
        why="Stops up to 301 are known to two, and a gain moves by less than one rounding with that.",
    ),
    Harmless(
        name="ratio-rounded",
        healthy=RATIO,
        changed="    ratio = (exposures[:, 0].float() / exposures[:, 1].float()).to(dtype).float().view(-1, 1, 1, 1)\n",
        precisions=ALL,
        why="A ratio is rounded once.",
    ),
    Harmless(
        name="vignette-low",
        healthy="    place = torch.arange(SIZE // 2).float()\n",
        changed="    place = torch.arange(SIZE // 2, dtype=dtype)\n",
        precisions=ALL,
        why="Halves up to 12 are exact, and so are their squares but the largest.",
    ),
    Harmless(
        name="similarity-rounded",
        healthy="        close = ssim(shown, wanted, dtype)\n",
        changed="        close = ssim(shown, wanted, dtype).to(dtype)\n",
        precisions=ALL,
        why="It is rounded once, and its mean is made in float32.",
    ),
    Harmless(
        name="shading-of-low-places",
        healthy=SQUARE,
        changed="    square = (across.to(dtype).float() / REACH)[None] ** 2 + (down.to(dtype).float() / REACH)[:, None] ** 2\n"
        "    square = square * REACH**2\n",
        precisions=BF16,
        why="Places are some millions of a millimetre off; the gain that they give moves by less than one rounding.",
    ),
]
