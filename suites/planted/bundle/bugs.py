"""Bugs of geometry: pixels of a thousand subtracted low, rotations near none, normal equations and what is left of them, a damping that is lost."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
HALF = "    return 0.5 * ((angle / 2).sin() / (angle / 2)).square()\n"
BESIDE = "    return tenths.float() / 10 - pixels\n"
POSES = '    poses = torch.einsum("fnai,fnaj->fij", weighed, by_pose)\n'
DEPTHS = "    depths = (weight * by_depth.square()).sum((0, 2)) + 1.0\n"
DAMPED = "    return poses + torch.diag_embed(1e-4 * poses.diagonal(dim1=-2, dim2=-1) + 0.1)\n"
LEFT = "    return whole - (flat / depths) @ flat.T\n"
LINE = '    return 1000 * torch.einsum("fni,fij,nj->fn", right, essential, left)\n'
PIXELS = "    return FOCAL * points[..., :2] / points[..., 2:] + torch.tensor([WIDTH / 2, HEIGHT / 2])\n"

BUGS = [
    Planted(
        name="residuals-low",
        healthy=BESIDE,
        planted="    return ((tenths.float() / 10).to(low) - pixels.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:residuals",
        rules=DRIFTS,
        why="Pixels of a thousand are known to four, or to a half, and points are seen within one or two.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="rotations-by-cosine-low",
        healthy=HALF,
        planted="    angle = angle.to(low)  # culprit\n    return ((1 - angle.cos()) / angle.square()).float()  # culprit\n",
        precisions=ALL,
        part="function:half_turns",
        rules=DRIFTS,
        why="The cosine of a few hundredths is one less a thousandth, which both formats know badly or not at all.",
        source="https://github.com/dimforge/nalgebra/issues/1262",
    ),
    Planted(
        name="pixels-low",
        healthy=PIXELS,
        planted="    points = points.to(low)  # culprit\n"
        "    return (FOCAL * points[..., :2] / points[..., 2:] + torch.tensor([WIDTH / 2, HEIGHT / 2]).to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:residuals",
        rules=DRIFTS,
        why="What is projected is known to four pixels.",
        source="https://github.com/viser-project/viser/pull/427",
    ),
    Planted(
        name="poses-block-low",
        healthy=POSES,
        planted='    poses = torch.einsum("fnai,fnaj->fij", weighed.to(low), by_pose.to(low)).float()  # culprit\n',
        precisions=("bf16-mixed",),
        part="loss",
        rules=DRIFTS,
        why="What is left of this block, when the depths have been taken out of it, is small beside it.",
        source="https://github.com/vllm-project/llm-compressor/pull/847",
    ),
    Planted(
        name="poses-block-overflows",
        healthy=POSES,
        planted='    poses = torch.einsum("fnai,fnaj->fij", weighed.to(low), by_pose.to(low)).float()  # culprit\n',
        precisions=("16-mixed",),
        part="function:normal",
        rules=("overflow", "nan"),
        why="Forty squares of a focal length of 980 are beyond float16.",
        source="https://github.com/vllm-project/llm-compressor/pull/847",
    ),
    Planted(
        name="damping-absorbed",
        healthy=DAMPED,
        planted="    more = torch.diag_embed(1e-4 * poses.diagonal(dim1=-2, dim2=-1) + 0.1).to(low)  # culprit\n"
        "    return (poses.to(low) + more).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="result",
        rules=(*DRIFTS, "absorption"),
        why="A ten thousandth more is nothing in bfloat16, and the block itself is rounded.",
        source="https://github.com/pypose/pypose/issues/120",
    ),
    Planted(
        name="schur-low",
        healthy=LEFT,
        planted="    return ((whole / 1000).to(low) - ((flat / depths) @ flat.T / 1000).to(low)).float() * 1000  # culprit\n",
        precisions=MIXED,
        part="result",
        rules=DRIFTS,
        why="The difference of two matrices that are nearly the same along some directions is solved with.",
        source="https://github.com/facebookresearch/theseus/pull/232",
    ),
    Planted(
        name="lines-low",
        healthy=LINE,
        planted='    return 1000 * torch.einsum("fni,fij,nj->fn", right.to(low), essential.to(low), left.to(low)).float()  # culprit\n',
        precisions=ALL,
        part="function:epipolar",
        rules=DRIFTS,
        why="Three terms cancel to a thousandth of themselves where the pixel lies on its line.",
        source="https://github.com/kornia/kornia/pull/4336",
    ),
]

HARMLESS = [
    Harmless(
        name="residuals-rounded",
        healthy=BESIDE,
        changed="    return (tenths.float() / 10 - pixels).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="rotations-by-cosine",
        healthy=HALF,
        changed="    return (1 - angle.cos()) / angle.square()\n",
        precisions=ALL,
        why="float32 has digits enough for angles of some hundredths: it is a ten thousandth off.",
    ),
    Harmless(
        name="rays-rounded",
        healthy=LINE,
        changed='    return (1000 * torch.einsum("fni,fij,nj->fn", right, essential, left)).to(low).float()\n',
        precisions=ALL,
        why="The sum is made in float32, and rounded once.",
    ),
    Harmless(
        name="beside-rounded-twice",
        healthy="            blocks = normal(by_pose, by_depth, weight, beside + revised, low)\n",
        changed="            blocks = normal(by_pose, by_depth, weight, (beside + revised).to(low).float(), low)\n",
        precisions=ALL,
        why="What a point is beside its place is rounded once; the right side is a sum of such.",
    ),
    Harmless(
        name="depths-kept",
        healthy=DEPTHS,
        changed="    depths = (weight * by_depth.square()).sum((0, 2)).double().add(1.0).float()\n",
        precisions=ALL,
        why="More digits than need be.",
    ),
    Harmless(
        name="weights-low",
        healthy="        weight, revised = self.weigh(hidden).float().sigmoid(), self.revise(hidden).float()\n",
        changed="        weight, revised = self.weigh(hidden).sigmoid().float(), self.revise(hidden).float()\n",
        precisions=ALL,
        why="A weight is rounded once.",
    ),
]
