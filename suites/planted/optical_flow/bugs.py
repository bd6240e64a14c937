"""Bugs of optical flow: places that are moved, a grid of places, correlations that overflow, a smooth distance."""

from __future__ import annotations

from planted_bug import Planted

BUGS = [
    Planted(
        name="places-low",
        healthy="    return places + by.float()\n",
        planted="    return (places + by.float()).to(low)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:Flow.way",
        rules=("absorption", "cancellation", "amplified-rounding", "accumulated-drift", "local-drift"),
        why="Places reach 95, where bfloat16 has halves, and each turn moves them by less. The flow is what they moved by.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
        more=(("                flows.append((places - begin).float())\n", "                flows.append((places - begin).float())  # culprit\n"),),
    ),
    Planted(
        name="grid-low",
        healthy="        grid = 2 * at / (size - 1) - 1\n",
        planted="        grid = (2 * at / (size - 1) - 1).to(low)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:looked_up",
        rules=("amplified-rounding", "cancellation", "local-drift"),
        why="A grid from -1 to 1 in bfloat16 is off by a fifth of a pixel of 96, and the correlation is read beside its peak.",
        source="https://github.com/tenstorrent/tt-metal/pull/28001",
    ),
    Planted(
        name="correlation-overflows",
        healthy="    one = one / c**0.5\n",
        planted="",
        precisions=("16-mixed",),
        part="function:correlation",
        rules=("overflow", "nan"),
        why="The product of unscaled features is beyond float16; it is divided only afterwards.",
        source="https://github.com/aqlaboratory/openfold/pull/295",
        more=(
            (
                "    alike = one.flatten(2).transpose(1, 2).to(low) @ two.flatten(2).to(low)\n",
                "    alike = one.flatten(2).transpose(1, 2).to(low) @ two.flatten(2).to(low)  # culprit\n    alike = alike / c**0.5\n",
            ),
        ),
    ),
    Planted(
        name="robust-constant-vanishes",
        healthy="    return (square + 1e-8).sqrt().float()\n",
        planted="    return (square.to(low) + 1e-8).sqrt().float()  # culprit\n",
        precisions=("16-mixed",),
        part="gradients",
        rules=("vanished-constant", "nan", "underflow", "overflow"),
        why="Where there is no true flow the square is nothing, 1e-8 is nothing in float16, and the derivative of the root has no end.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
]
