"""Bugs of stereo depth: pixels beyond 256, parts of pixels, small changes of a large disparity, millimetres, variances of bright images."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding", "decision-flip")
PLACES = "        places = torch.arange(self.rig.width) - disparity\n"
OWN = "        own = 1000 * disparity / (self.rig.focal * self.rig.base)\n"
SPREAD = "    return (chances * (steps[:, None, None] - mean).square()).sum(1)\n"
DOUBT = "    return -(chances * (chances + 1e-9).log()).sum(1) / torch.tensor(float(scores.shape[1])).log()\n"
CHANGE = "    change = (disparity[:, :, 1:] - disparity[:, :, :-1]).abs()\n"
GAP = "    gap = depth.log() - truth.log()\n"
MEANS = "    a_mean, b_mean = pooled(a), pooled(b)\n"
POINTS = "        right = points[:, :-1, 1:] - points[:, :-1, :-1]\n"
DEPTH = "        return self.rig.focal * self.rig.base / (disparity + 1e-3)\n"

BUGS = [
    Planted(
        name="grid-low",
        healthy=PLACES,
        planted="        places = (torch.arange(self.rig.width, dtype=self.low) - disparity).float()  # culprit\n",
        precisions=BF16,
        part="gradient:refine.2.bias",
        rules=WHOLE,
        why="Beyond pixel 256 bfloat16 has every second one.",
        source="https://github.com/zhiqwang/yolort/pull/111",
    ),
    Planted(
        name="places-low",
        healthy=PLACES,
        planted="        places = (torch.arange(self.rig.width) - disparity).to(self.low)  # culprit\n",
        more=(("        return left.long(), places - left\n", "        return left.long(), (places - left).float()  # culprit\n"),),
        precisions=ALL,
        part="function:Geometry.sources.1",
        rules=WHOLE,
        why="Of a place of 200 bfloat16 knows whole pixels and float16 an eighth of one.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="disparity-low",
        healthy="        places = torch.arange(self.rig.width) - disparity\n",
        planted="        places = torch.arange(self.rig.width) - disparity.to(self.low).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:Geometry.sources.1",
        rules=WHOLE,
        why="A disparity of 40 is known to a quarter, and the part of a pixel is what the colours are mixed by.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="millimetres-overflow",
        healthy=DEPTH,
        planted="        product = torch.tensor(self.rig.focal * self.rig.base, dtype=self.low)  # culprit\n"
        "        return (product / (disparity.to(self.low) + 1e-3)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:Geometry.depth",
        rules=("overflow", "nan"),
        why="The focal length times the base in millimetres is 390000.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="closeness-low",
        healthy=OWN + "        return own - 1000 / plane.float()[:, None, None]\n",
        planted="        own = (1000 * disparity / (self.rig.focal * self.rig.base)).to(self.low)  # culprit\n"
        "        return (own - (1000 / plane.float()[:, None, None]).to(self.low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:Geometry.closeness",
        rules=DRIFTS,
        why="Two inverse depths of a tenth are known to a 4000th, and differ by a hundredth.",
        source="https://github.com/openvdb/fvdb-core/issues/129",
    ),
    Planted(
        name="principal-point-low",
        healthy="        u = (torch.arange(self.rig.width) + 0.5 - self.rig.middle[0]) / self.rig.focal\n",
        planted="        u = ((torch.arange(self.rig.width, dtype=self.low) + 0.5 - self.rig.middle[0]) / self.rig.focal).float()  # culprit\n",
        precisions=BF16,
        part="function:Geometry.normals",
        rules=WHOLE,
        why="Beyond pixel 128 there are no halves, and beyond 256 no odd pixels.",
        source="https://github.com/nerfstudio-project/gsplat/pull/270",
    ),
    Planted(
        name="points-low",
        healthy=POINTS,
        planted="        points = points.to(self.low)  # culprit\n        right = points[:, :-1, 1:] - points[:, :-1, :-1]  # culprit\n",
        more=(
            (
                "        down = points[:, 1:, :-1] - points[:, :-1, :-1]\n",
                "        down = points[:, 1:, :-1] - points[:, :-1, :-1]  # culprit\n",
            ),
            ("torch.linalg.cross(right, down), dim", "torch.linalg.cross(right.float(), down.float()), dim"),
        ),
        precisions=("bf16-mixed",),
        part="function:Geometry.normals",
        rules=DRIFTS,
        why="At ten metres bfloat16 knows six centimetres, and neighbours are one apart.",
        source="https://github.com/aqlaboratory/openfold/pull/222",
    ),
    Planted(
        name="spread-by-squares",
        healthy=SPREAD,
        planted="    squares = (chances.to(low) * (steps.to(low) + 40)[:, None, None].square()).sum(1)\n"
        "    return (squares - ((mean.squeeze(1) + 40).to(low)).square()).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:spread",
        rules=DRIFTS,
        why="The square of a disparity of 40 is known to eight, and the variance is three.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="guard-vanishes",
        healthy=DOUBT,
        planted="    chances = scores.to(low).mul(400).softmax(1)\n"
        "    return (-(chances * (chances + 1e-9).log()).sum(1)).float() / torch.tensor(float(scores.shape[1])).log()  # culprit\n",
        more=(("    chances = scores.float().mul(4).softmax(1)\n", "    chances = scores\n"),),
        precisions=("16-mixed",),
        part="function:doubt",
        rules=("vanished-constant", "nan", "overflow", "underflow"),
        why="A guard of 1e-9 is nought in float16, and a chance that is nought times minus infinity is no number.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
    Planted(
        name="similarity-low",
        healthy=MEANS,
        planted="    a, b = a.to(low), b.to(low)  # culprit\n    a_mean, b_mean = pooled(a), pooled(b)\n",
        more=(
            (
                "    a_spread, b_spread = pooled(a.square()) - a_mean.square(), pooled(b.square()) - b_mean.square()\n",
                "    a_spread, b_spread = pooled(a.square()) - a_mean.square(), pooled(b.square()) - b_mean.square()  # culprit\n",
            ),
            ("    both = pooled(a * b) - a_mean * b_mean\n", "    both = pooled(a * b) - a_mean * b_mean  # culprit\n"),
        ),
        precisions=MIXED,
        part="function:likeness",
        rules=DRIFTS,
        why="Squares of 0.7 are known to a 512th or a 4096th, and the variance is a 400th.",
        source="https://github.com/tenstorrent/tt-metal/issues/45968",
    ),
    Planted(
        name="changes-low",
        healthy=CHANGE,
        planted="    disparity = disparity.to(low)  # culprit\n    change = (disparity[:, :, 1:] - disparity[:, :, :-1]).abs().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:roughness",
        rules=DRIFTS,
        why="Neighbours' disparities of 40 differ by a hundredth, and float16 knows a 32nd.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="logarithms-low",
        healthy=GAP,
        planted="    gap = (depth.log().to(low) - truth.log().to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="function:scale_free",
        rules=DRIFTS,
        why="The logarithm of ten thousand millimetres is nine, known to a 32nd, and the two differ by a hundredth.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
]

HARMLESS = [
    Harmless(
        name="coarse-rounded-to-pixels",
        healthy="        return (ground.float() / 256)[:, :, None].expand(-1, -1, self.rig.width)\n",
        changed="        whole = (ground // 256).to(self.low).float()\n"
        "        return (whole + (ground % 256).to(self.low).float() / 256)[:, :, None].expand(-1, -1, self.rig.width)\n",
        precisions=ALL,
        why="Whole pixels and whole 256ths of one are numbers that either format has.",
    ),
    Harmless(
        name="parts-rounded",
        healthy="        return left.long(), places - left\n",
        changed="        return left.long(), (places - left).to(self.low).float()\n",
        precisions=ALL,
        why="The part of a pixel is made in float32, and rounded once.",
    ),
    Harmless(
        name="metres-low",
        healthy=DEPTH,
        changed="        return 1000 * (self.rig.focal * self.rig.base / 1000 / (disparity + 1e-3)).to(self.low).float()\n",
        precisions=("16-mixed",),
        why="In metres a depth is within float16, and is rounded once; a millimetre at nine metres does nothing to the losses.",
    ),
    Harmless(
        name="closeness-rounded",
        healthy="        return own - 1000 / plane.float()[:, None, None]\n",
        changed="        return (own - 1000 / plane.float()[:, None, None]).to(self.low).float()\n",
        precisions=ALL,
        why="The difference is made in float32.",
    ),
    Harmless(
        name="rays-rounded",
        healthy="        u = (torch.arange(self.rig.width) + 0.5 - self.rig.middle[0]) / self.rig.focal\n",
        changed="        u = ((torch.arange(self.rig.width) + 0.5 - self.rig.middle[0]) / self.rig.focal).to(self.low).float()\n",
        precisions=("16-mixed",),
        why="A direction is rounded once, after the middle has been taken off.",
    ),
    Harmless(
        name="normals-of-rounded-steps",
        healthy="torch.linalg.cross(right, down), dim",
        changed="torch.linalg.cross(right.to(self.low).float(), down.to(self.low).float()), dim",
        precisions=ALL,
        why="The steps between points are made in float32, and rounded once.",
    ),
    Harmless(
        name="deviations-rounded",
        healthy=SPREAD,
        changed="    return (chances.to(low) * (steps[:, None, None] - mean).to(low).square()).sum(1).float()\n",
        precisions=MIXED,
        why="Squares of small deviations are positive, and each is rounded once.",
    ),
    Harmless(
        name="guard-of-float16",
        healthy=DOUBT,
        changed="    chances = chances.to(low)\n"
        "    return -(chances * (chances + 1e-4).log()).sum(1).float() / torch.tensor(float(scores.shape[1])).log()\n",
        precisions=("16-mixed",),
        why="1e-4 is a number of float16.",
    ),
    Harmless(
        name="edges-low",
        healthy="    edge = (image[..., 1:] - image[..., :-1]).abs().mean(1)\n",
        changed="    edge = (image[..., 1:] - image[..., :-1]).abs().to(low).mean(1).float()\n",
        precisions=ALL,
        why="Differences are made in float32, and their mean is of positive numbers.",
    ),
    Harmless(
        name="ratio-rounded",
        healthy=GAP,
        changed="    gap = (depth / truth).log().to(low).float()\n",
        precisions=MIXED,
        why="The logarithm of the ratio is rounded once.",
    ),
]
