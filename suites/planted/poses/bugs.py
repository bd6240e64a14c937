"""Bugs of key points and cameras: pixels and places subtracted low, frames of long recordings, small turns, squares of pixels."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation", "integer-rounding")
CENTRED = "    return pixels - pixels[:, :, :1]\n"
SPEEDS = "    return (pixels[:, 1:] - pixels[:, :-1]) * RATE\n"
CHANGE = "    change = (matrix[:, 1:] - matrix[:, :-1]).square().sum((-1, -2))\n    return 2 * (change / 8).sqrt().clamp_max(1).asin()\n"
BEFORE = "    return hip.float() / 1000 - camera.float() / 1000\n"
SQUARES = "    return (found - seen).square().sum(-1).mean() / 1000\n"

BUGS = [
    Planted(
        name="velocities-low",
        healthy=SPEEDS,
        planted="    pixels = pixels.to(low)  # culprit\n    return ((pixels[:, 1:] - pixels[:, :-1]) * RATE).float()  # culprit\n",
        precisions=ALL,
        part="function:velocities",
        rules=DRIFTS,
        why="A place of 700 pixels is known to two of them in bfloat16, and to a quarter in float16; it moves by two a frame.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="gait-low",
        healthy="    seconds = frame.float() / RATE\n",
        planted="    seconds = (frame.float() / RATE).to(low)  # culprit\n",
        more=(
            (
                "    turns = 6.283185 * seconds[..., None] / torch.tensor([0.5, 1.0, 2.0])\n",
                "    turns = 6.283185 * seconds[..., None] / torch.tensor([0.5, 1.0, 2.0], dtype=low)  # culprit\n",
            ),
            ("    return torch.cat([turns.sin(), turns.cos()], -1)\n", "    return torch.cat([turns.sin(), turns.cos()], -1).float()\n"),
        ),
        precisions=("bf16-mixed",),
        part="function:gait",
        rules=DRIFTS,
        why="After an hour bfloat16 knows every sixteenth second.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="turns-by-trace",
        healthy=CHANGE,
        planted="    change = matrix[:, 1:].to(low) @ matrix[:, :-1].to(low).mT  # culprit\n"
        "    cosine = (change.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2  # culprit\n"
        "    return cosine.clamp(-0.9999, 0.9999).acos().float()  # culprit\n",
        precisions=BF16,
        part="function:turned",
        rules=DRIFTS,
        why="The cosine of a small turn is one less a thousandth, which bfloat16 rounds to one.",
        source="https://github.com/facebookresearch/pytorch3d/issues/188",
    ),
    Planted(
        name="hall-low",
        healthy=BEFORE,
        planted="    hip, camera = (hip.float() / 1000).to(low), (camera.float() / 1000).to(low)  # culprit\n"
        "    return (hip - camera).float()  # culprit\n",
        precisions=ALL,
        part="function:before_camera",
        rules=DRIFTS,
        why="In a hall 40 metres away bfloat16 knows every quarter of a metre, and the hip is 0.3 beside the camera's axis.",
        source="https://github.com/aqlaboratory/openfold-3/pull/353",
    ),
    Planted(
        name="squares-overflow",
        healthy=SQUARES,
        planted="    return (found.to(low) - seen.to(low)).square().sum(-1).mean().float() / 1000  # culprit\n",
        precisions=("16-mixed",),
        part="function:pixel_loss",
        rules=("overflow",),
        why="The square of 300 pixels is beyond float16.",
        source="https://github.com/pytorch/pytorch/issues/40497",
    ),
]

HARMLESS = [
    Harmless(
        name="centred-rounded",
        healthy=CENTRED,
        changed="    return (pixels - pixels[:, :, :1]).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="speeds-of-quarters",
        healthy="    pixels = quarters.float() / 4\n" + SPEEDS,
        changed="    return (quarters[:, 1:] - quarters[:, :-1]).to(low).float() * (RATE / 4)\n",
        precisions=ALL,
        why="Whole quarters are subtracted as whole numbers, and what is left is small.",
    ),
    Harmless(
        name="waves-rounded",
        healthy="    return torch.cat([turns.sin(), turns.cos()], -1)\n",
        changed="    return torch.cat([turns.sin(), turns.cos()], -1).to(low).float()\n",
        precisions=ALL,
        why="The phase is that of float32, and each wave is rounded once.",
    ),
    Harmless(
        name="directions-low",
        healthy="    first = F.normalize(first, dim=-1)\n",
        changed="    first = F.normalize(first.to(low), dim=-1).float()\n",
        precisions=MIXED,
        why="A direction that is rounded once; the second is made orthogonal to it in float32.",
    ),
    Harmless(
        name="hall-in-millimetres",
        healthy=BEFORE,
        changed="    return (hip - camera).to(low).float() / 1000\n",
        precisions=ALL,
        why="Millimetres are subtracted as whole numbers; their difference is rounded once.",
    ),
    Harmless(
        name="pixels-rounded-apart",
        healthy=SQUARES,
        changed="    apart = ((found - seen) / 100).to(low)\n    return 10 * apart.square().sum(-1).mean().float()\n",
        precisions=ALL,
        why="Differences are made in float32 and scaled before they are squared.",
    ),
]
