"""Bugs of image reconstruction: a spectrum's centre, squares of small coils, phases of many turns, echoes that hardly differ."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="spectrum-overflows",
        healthy="    return torch.view_as_real(kspace)\n",
        planted="    return torch.view_as_real(kspace).half().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:sampled",
        rules=("overflow",),
        why="The centre of the spectrum is the sum of all pixels, which is beyond float16.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
    Planted(
        name="small-coils-vanish",
        healthy="    return coils.abs().square().sum(1).sqrt()\n",
        planted="    small = coils.abs().half()\n    return (small * small).sum(1).sqrt()  # culprit\n",
        precisions=("16-mixed",),
        part="function:root_sum_of_squares",
        rules=("underflow",),
        why="Signals of a ten-thousandth have squares that float16 does not hold.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
    ),
    Planted(
        name="misfit-low",
        healthy="    return predicted - kspace\n",
        planted="    return (predicted.to(low) - kspace.to(low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:misfit",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Both are nearly equal, and each is rounded.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="spoke-phases-low",
        healthy="    return angles.float().cos()[:, None, None] * radius[:, None] * x\n",
        planted="    return (angles.float().cos()[:, None, None] * radius[:, None] * x).to(low).float()  # culprit\n",
        precisions=MIXED,
        part="function:along_spokes",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="A phase of 1500 is known to eight in bfloat16 and to one in float16.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="spoke-angles-low",
        healthy="    return angles.float().cos()[:, None, None] * radius[:, None] * x\n",
        planted="    turn = angles.float().cos().to(low)  # culprit\n    return turn.float()[:, None, None] * radius[:, None] * x\n",
        precisions=MIXED,
        part="function:along_spokes",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="A cosine is off by a 500th, which is three at the end of a spoke.",
        source="https://github.com/finegrain-ai/refiners/pull/449",
    ),
    Planted(
        name="echoes-low",
        healthy="    return (first.float().log() - second.float().log()) / (ECHOES[1] - ECHOES[0])\n",
        planted="    return (first.float().log().to(low) - second.float().log().to(low)).float() / (ECHOES[1] - ECHOES[0])  # culprit\n",
        precisions=MIXED,
        part="function:decay_rates",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Logarithms of five differ by half a hundredth, which is a fifth of what bfloat16 knows.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
    Planted(
        name="variances-by-moments",
        healthy="    va, vb = (wa - ma[..., None]).square().mean(-1), (wb - mb[..., None]).square().mean(-1)\n",
        planted="    la, lb = wa.to(low), wb.to(low)\n"
        "    va = (la.square().mean(-1) - la.mean(-1).square()).float()  # culprit\n"
        "    vb = (lb.square().mean(-1) - lb.mean(-1).square()).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:ssim",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Squares of 0.9 less the square of 0.9 are known to a 256th, and the variance is a 2500th.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
]

HARMLESS = [
    Harmless(
        name="spectrum-scaled",
        healthy="    return torch.view_as_real(kspace)\n",
        changed="    return torch.view_as_real(kspace / 64).half().float() * 64\n",
        precisions=MIXED,
        why="A spectrum divided by 64 has its centre below 4000, and each number is rounded once, in float16 in either precision.",
    ),
    Harmless(
        name="coils-scaled-first",
        healthy="    return coils.abs().square().sum(1).sqrt()\n",
        changed="    most = coils.abs().amax()\n    small = (coils.abs() / most).to(low)\n    return (small * small).sum(1).float().sqrt() * most\n",
        precisions=("16-mixed",),
        why="Signals are divided by the largest first.",
    ),
    Harmless(
        name="misfit-rounded",
        healthy="    return predicted - kspace\n",
        changed="    return (predicted - kspace).to(low).float()\n",
        precisions=MIXED,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="places-low",
        healthy="    x = torch.arange(SIZE, dtype=torch.float32) - SIZE / 2\n",
        changed="    x = (torch.arange(SIZE).to(low) - SIZE / 2).float()\n",
        precisions=MIXED,
        why="Whole numbers up to 24.",
    ),
    Harmless(
        name="waves-rounded",
        healthy="    phase = spoke_phases(angles, low)\n",
        changed="    phase = spoke_phases(angles, low)\n    phase = (phase - 2 * math.pi * (phase / (2 * math.pi)).round()).to(low).float()\n",
        precisions=("16-mixed",),
        why="Whole turns are taken off in float32; what is rounded is half a turn at most.",
    ),
    Harmless(
        name="echoes-ratio-rounded",
        healthy="    return (first.float().log() - second.float().log()) / (ECHOES[1] - ECHOES[0])\n",
        changed="    return (first.float().log() - second.float().log()).to(low).float() / (ECHOES[1] - ECHOES[0])\n",
        precisions=MIXED,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="deviations-rounded",
        healthy="    va, vb = (wa - ma[..., None]).square().mean(-1), (wb - mb[..., None]).square().mean(-1)\n",
        changed="    va = (wa - ma[..., None]).to(low).float().square().mean(-1)\n    vb = (wb - mb[..., None]).to(low).float().square().mean(-1)\n",
        precisions=MIXED,
        why="Differences are made in float32, and rounded once.",
    ),
    Harmless(
        name="mask-low",
        healthy="    kspace = fft2c(image.unsqueeze(1) * maps) * mask\n",
        changed="    kspace = fft2c(image.unsqueeze(1) * maps) * mask.to(low).float()\n",
        precisions=MIXED,
        why="Noughts and ones.",
    ),
]
