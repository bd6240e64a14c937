"""Bugs of periodic cells: places subtracted low, phases of many turns, narrow bells, a volume."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
PLACES = "        return millionths.float() / 1e6\n"
APART = "        apart = places[:, :, None] - places[:, None]\n"
PHASE = "        return 2 * math.pi * (places @ self.planes.float().T)\n"
BELLS = "        return (-0.5 * ((distance[..., None] - centres) / self.width).square()).exp()\n"

BUGS = [
    Planted(
        name="places-low",
        healthy=PLACES,
        planted="        return (millionths.float() / 1e6).to(low)  # culprit\n",
        more=(
            (APART, "        apart = (places[:, :, None] - places[:, None]).float()  # culprit\n"),
            (PHASE, "        return 2 * math.pi * (places.float() @ self.planes.float().T)\n"),
        ),
        precisions=MIXED,
        part="function:Diffraction.forward",
        rules=DRIFTS,
        why="A place of 0.9 is known to a five-hundredth, and a wave of fourteen turns needs a thousandth.",
        source="https://github.com/chaitjo/geometric-gnn-dojo/issues/5",
    ),
    Planted(
        name="images-low",
        healthy=APART,
        planted="        places = places.to(low)  # culprit\n        apart = places[:, :, None] - places[:, None]  # culprit\n",
        more=(
            (
                "        return (apart - apart.round()) * (lengths.float() / 1000)[:, None, None]\n",
                "        return ((apart - apart.round()) * (lengths.float() / 1000).to(low)[:, None, None]).float()  # culprit\n",
            ),
        ),
        precisions=BF16,
        part="function:Geometry.nearest_images",
        rules=DRIFTS,
        why="Of a cell of 40 ångströms bfloat16 knows a place to a tenth or two, and the nearest image is subtracted from that.",
        source="https://github.com/ACEsuit/mace/issues/404",
    ),
    Planted(
        name="phases-low",
        healthy=PHASE,
        planted="        return 2 * math.pi * (places.to(low) @ self.planes.to(low).T)  # culprit\n",
        precisions=ALL,
        part="function:Diffraction.forward",
        rules=DRIFTS,
        why="Phases of a hundred radians are known to half of one.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="bells-low",
        healthy="        centres = torch.arange(CENTRES) * (self.cutoff / CENTRES)\n" + BELLS,
        planted="        distance, centres = distance.to(low), (torch.arange(CENTRES) * (self.cutoff / CENTRES)).to(low)  # culprit\n"
        "        return (-0.5 * ((distance[..., None] - centres) / self.width).square()).exp()  # culprit\n",
        precisions=BF16,
        part="function:RadialBasis.forward",
        rules=DRIFTS,
        why="A distance of eight is known to a thirty-second, and a bell is 0.08 wide.",
        source="https://github.com/atomistic-machine-learning/schnetpack/issues/165",
    ),
    Planted(
        name="volume-overflows",
        healthy="        sides = lengths.float() / 1000\n",
        planted="        sides = (lengths.float() / 1000).to(low)  # culprit\n",
        more=(
            (
                "        volume = sides[:, 0] * sides[:, 1] * sides[:, 2]\n",
                "        volume = sides[:, 0] * sides[:, 1] * sides[:, 2]  # culprit\n",
            ),
        ),
        precisions=("16-mixed",),
        part="function:Crystals.density",
        rules=("overflow",),
        why="A cell of 43 by 42 by 44 ångströms is 79 000 cubic ones.",
        source="https://github.com/open-mmlab/mmdetection/issues/5237",
    ),
]

HARMLESS = [
    Harmless(
        name="images-rounded",
        healthy="        return (apart - apart.round()) * (lengths.float() / 1000)[:, None, None]\n",
        changed="        return ((apart - apart.round()) * (lengths.float() / 1000)[:, None, None]).to(low).float()\n",
        precisions=("16-mixed",),
        why="The difference is made in float32, and rounded once to a thousandth of an ångström.",
    ),
    Harmless(
        name="bells-rounded",
        healthy=BELLS,
        changed="        return (-0.5 * ((distance[..., None] - centres) / self.width).square()).to(low).exp()\n",
        precisions=MIXED,
        why="Where the exponent is large enough to be known badly, the bell is nearly nought.",
    ),
    Harmless(
        name="waves-rounded",
        healthy="        real, imaginary = (electrons[..., None] * phase.cos()).sum(1), (electrons[..., None] * phase.sin()).sum(1)\n",
        changed="        cosines, sines = phase.cos().to(low), phase.sin().to(low)\n"
        "        real, imaginary = (electrons[..., None] * cosines).sum(1), (electrons[..., None] * sines).sum(1)\n",
        precisions=ALL,
        why="The phase is exact, and each wave is rounded once.",
    ),
    Harmless(
        name="charges-low",
        healthy="        pairs = charges[:, :, None] * charges[:, None] / distance\n",
        changed="        pairs = (charges.to(low)[:, :, None] * charges.to(low)[:, None]).float() / distance\n",
        precisions=ALL,
        why="Charges are one and two, and so are their products.",
    ),
    Harmless(
        name="masses-in-parts",
        healthy="        return 1.66054 * masses.float().sum(1) / volume\n",
        changed="        return 1.66054 * masses.to(low).float().sum(1) / volume\n",
        precisions=ALL,
        why="Masses up to 208 are whole numbers that every format holds.",
    ),
]
