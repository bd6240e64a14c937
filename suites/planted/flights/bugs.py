"""Bugs of a model of flights: degrees, times of the day, headings and pressures that are large beside what they change by."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
NORTH = "    north = (latitude[:, 1:] - latitude[:, :-1]).float() * 1e-6\n"
EAST = "    east = (longitude[:, 1:] - longitude[:, :-1]).float() * 1e-6\n"
PAUSES = "    return (clock[:, 1:] - clock[:, :-1]).float() / 1000\n"
TURN = "    turn = (heading[:, 1:] - heading[:, :-1] + 1800) % 3600 - 1800\n    return turn.float() / 10\n"
FLOWN = "    return step.float().norm(dim=-1).cumsum(-1)\n"
CLIMBED = "    return -8434.0 * torch.log1p((pascal - start).float() / start.float())\n"
NEAR = "    apart, speed = apart.float(), speed.float()\n"
BESIDE = "    beside = apart[..., 0] * speed[..., 1] - apart[..., 1] * speed[..., 0]\n    return beside.square() / speed.square().sum(-1)\n"
ARC = "    there, here = there.float(), here.float()\n    return 2 * torch.asin((there - here).norm(dim=-1) / 2)\n"
GLOBE = "    return torch.stack([north.cos() * east.cos(), north.cos() * east.sin(), north.sin()], -1)\n"

BUGS = [
    Planted(
        name="degrees-low",
        healthy=NORTH,
        planted="    degrees = (latitude.float() * 1e-6).bfloat16()  # culprit\n    north = (degrees[:, 1:] - degrees[:, :-1]).float()  # culprit\n",
        precisions=BF16,
        part="function:steps",
        rules=DRIFTS,
        why="50 degrees are known to a quarter, and a step is a hundredth.",
        source="https://github.com/PX4/PX4-Autopilot/issues/16823",
    ),
    Planted(
        name="turn-half",
        healthy=TURN,
        planted="    degrees = heading.half() / 10  # culprit\n"
        "    turn = degrees[:, 1:] - degrees[:, :-1]  # culprit\n    return torch.remainder(turn.float() + 180, 360) - 180\n",
        precisions=("16-mixed",),
        part="function:turned",
        rules=WHOLE,
        why="Of 300 degrees float16 knows a quarter, and a turn is two.",
        source="https://github.com/simplefoc/Arduino-FOC/pull/527",
    ),
    Planted(
        name="climb-of-low-ratio",
        healthy=CLIMBED,
        planted="    return -8434.0 * torch.log(pascal.bfloat16() / start.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:climbed",
        rules=WHOLE,
        why="The pressures' ratio is 0.95, and its logarithm a twentieth.",
        source="https://github.com/SpeedyWeather/SpeedyWeather.jl/issues/85",
    ),
    Planted(
        name="closest-by-squares-low",
        healthy=NEAR,
        planted="    apart, speed = apart.bfloat16(), speed.bfloat16()  # culprit\n",
        more=(
            (
                BESIDE,
                "    along = (apart * speed).sum(-1)  # culprit\n"
                "    return (apart.square().sum(-1) - along.square() / speed.square().sum(-1)).float()  # culprit\n",
            ),
        ),
        precisions=BF16,
        part="function:closest",
        rules=DRIFTS,
        why="The square of the way ahead is taken off the square of the distance, and little is left.",
        source="https://github.com/tenstorrent/tt-metal/issues/45968",
    ),
    Planted(
        name="arc-by-cosine-low",
        healthy=ARC,
        planted="    cosine = (there.bfloat16() * here.bfloat16()).sum(-1).float()  # culprit\n"
        "    return torch.acos(cosine.clamp(-0.999999, 0.999999))  # culprit\n",
        precisions=BF16,
        part="function:arc",
        rules=(*DRIFTS, "vanished-constant"),
        why="The cosine of two hundred kilometres of the globe is nearly one.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
]

HARMLESS = [
    Harmless(
        name="pauses-rounded",
        healthy=PAUSES,
        changed="    return ((clock[:, 1:] - clock[:, :-1]).float() / 1000).bfloat16().float()\n",
        precisions=BF16,
        why="What is rounded is the difference.",
    ),
    Harmless(
        name="flown-of-rounded-steps",
        healthy=FLOWN,
        changed="    return step.bfloat16().float().norm(dim=-1).cumsum(-1)\n",
        precisions=BF16,
        why="Each step is rounded once, and they are added up in float32.",
    ),
    Harmless(
        name="turn-rounded",
        healthy="    return turn.float() / 10\n",
        changed="    return turn.half() / 10\n",
        precisions=("16-mixed",),
        why="A turn is a small whole number, which float16 has.",
    ),
    Harmless(
        name="speeds-rounded",
        healthy="            speed = step[:, -1] / pause[:, -1:] + ahead.float() / 100\n",
        changed="            speed = (step[:, -1] / pause[:, -1:]).bfloat16() + ahead.float() / 100\n",
        precisions=BF16,
        why="Speeds are rounded once, and what is made of them is a product.",
    ),
]
