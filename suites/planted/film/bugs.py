"""Bugs of a model that looks at film: positions far from nought, clocks, grids of patches, boxes in pixels, and counts of words."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
INFINITE = ("overflow", "nan")
PLACE = "    place = torch.linspace(0, ROWS - 1, count)\n"
SECONDS = "    seconds = milliseconds.float() / 1000\n"
ANGLE = '    with torch.autocast("cpu", enabled=False):\n        angle = place[..., None].float() @ steps\n'
SCALED = "    scaled = pooled.float() * DIM**0.5\n"
NORMED = "    return scaled / scaled.square().mean(-1, keepdim=True).add(1e-6).sqrt()\n"
SIDES = "    return (box[..., 2:] - box[..., :2]).float() / 100\n"
EDGES = "    width, height = (box[..., 2:] - box[..., :2]).float().unbind(-1)\n"
AREA = "    return width * height / (1920 * 1080)\n"
ANSWERED = "    return asked.sum(1).float()\n"
WAVES = "    return angle.cos(), angle.sin()\n"

BUGS = [
    Planted(
        name="grid-low",
        healthy=PLACE,
        planted="    place = torch.linspace(0, ROWS - 1, count, dtype=torch.bfloat16).float()  # culprit\n",
        precisions=BF16,
        part="function:spread.1",
        rules=WHOLE,
        why="Of forty rows bfloat16 knows a quarter, and a patch is a fraction of one behind a row.",
        source="https://github.com/NVlabs/RADIO/pull/6",
    ),
    Planted(
        name="clock-low",
        healthy=SECONDS,
        planted="    seconds = (milliseconds.float() / 1000).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:ticks",
        rules=(*WHOLE, "decision-flip"),
        why="Of 60 seconds bfloat16 knows a quarter, and frames are half a second apart.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="positions-in-autocast",
        healthy=ANGLE,
        planted="    angle = place[..., None].float() @ steps  # culprit\n",
        precisions=MIXED,
        part="function:turns.0",
        rules=WHOLE,
        why="Positions begin at 4096, and autocast makes low numbers of them for the product.",
        source="https://github.com/huggingface/diffusers/pull/13922",
    ),
    Planted(
        name="positions-low",
        healthy=ANGLE,
        planted="    angle = place[..., None].to(LOW) * steps.to(LOW)  # culprit\n    angle = angle.float()\n",
        more=(("STEPS = 1\n", "STEPS = 1\nLOW = torch.bfloat16\n"),),
        precisions=("bf16-true",),
        part="function:turns.0",
        rules=WHOLE,
        why="From 4096 on bfloat16 has every 32nd position.",
        source="https://github.com/huggingface/diffusers/pull/13922",
    ),
    Planted(
        name="scale-overflows",
        healthy=SCALED,
        planted="    scaled = (pooled * DIM**0.5).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:standardised",
        rules=INFINITE,
        why="The tower's numbers are some ten thousand, and seven times that is more than float16 has.",
        source="https://github.com/huggingface/transformers/pull/46277",
    ),
    Planted(
        name="sides-low",
        healthy=SIDES,
        planted="    box = box.to(torch.bfloat16)  # culprit\n    return (box[..., 2:] - box[..., :2]).float() / 100  # culprit\n",
        precisions=BF16,
        part="function:sides",
        rules=WHOLE,
        why="Edges at 1500 are known to eight pixels, and things are 20 to 90 wide.",
        source="https://github.com/kornia/kornia/pull/4336",
    ),
    Planted(
        name="areas-overflow",
        healthy=EDGES,
        planted="    width, height = (box[..., 2:] - box[..., :2]).half().unbind(-1)\n",
        more=((AREA, "    return (width * height / (1920 * 1080)).float()  # culprit\n"),),
        precisions=("16-mixed",),
        part="function:areas",
        rules=INFINITE,
        why="310 times 240 pixels are more than float16 has.",
        source="https://github.com/pytorch/vision/pull/9175",
    ),
    Planted(
        name="counted-low",
        healthy=ANSWERED,
        planted="    seen = torch.zeros(len(asked), dtype=torch.bfloat16)\n"
        "    for column in asked.unbind(1):\n        seen = seen + column  # culprit\n    return seen.float()\n",
        precisions=BF16,
        part="function:answered",
        rules=("absorption", *WHOLE),
        why="256 and one more are 256 in bfloat16.",
        source="https://github.com/pytorch/pytorch/issues/92164",
    ),
]

HARMLESS = [
    Harmless(
        name="waves-rounded",
        healthy=WAVES,
        changed="    return angle.cos().bfloat16(), angle.sin().bfloat16()\n",
        precisions=BF16,
        why="Cosines of exact angles are rounded once.",
    ),
    Harmless(
        name="sides-rounded",
        healthy=SIDES,
        changed="    return (box[..., 2:] - box[..., :2]).to(torch.bfloat16) / 100\n",
        precisions=BF16,
        why="Sides below 256 are whole numbers that bfloat16 has, and larger ones are rounded once.",
    ),
    Harmless(
        name="areas-in-shares",
        healthy=EDGES,
        changed="    width, height = ((box[..., 2:] - box[..., :2]) / torch.tensor([1920, 1080])).half().unbind(-1)\n",
        more=((AREA, "    return (width * height).float()\n"),),
        precisions=("16-mixed",),
        why="Shares of the sides are below one.",
    ),
    Harmless(
        name="scaled-before-it-grows",
        healthy=SCALED,
        changed="    scaled = (pooled * (1 / 64)).float()\n",
        precisions=("16-mixed",),
        why="A power of two makes no rounding, and the norm takes every factor out.",
    ),
]
