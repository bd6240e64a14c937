"""Bugs of jets: masses that are small differences of large energies, angles that are wrapped, errors of millionths of a metre."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")
DIFFERENCES = ("cancellation", "amplified-rounding", "local-drift", "accumulated-drift")
MASSES = """    spread = (deta / 2).sinh().square() + (dphi / 2).sin().square()
    return (4 * pt[:, :, None] * pt[:, None, :] * spread).clamp_min(1e-4).log()
"""
RAPIDITY = """    across = (energy - pz) * (energy + pz)
    return (pz / across.sqrt()).asinh()
"""
MASS = """    total = p.sum(1)
    momentum, energy = total[:, :3].norm(dim=-1), total[:, 3]
    return ((energy - momentum) * (energy + momentum)).sqrt()
"""

BUGS = [
    Planted(
        name="masses-by-momenta",
        healthy=MASSES,
        planted="""    p = torch.cat([p[..., :3], p[..., :3].norm(dim=-1, keepdim=True)], -1)
    both = (p[:, :, None, :] + p[:, None, :, :]).to(low)
    squares = both.square()  # culprit
    return (squares[..., 3] - squares[..., 0] - squares[..., 1] - squares[..., 2]).float().clamp_min(1e-4).log()  # culprit
""",
        precisions=("bf16-mixed",),
        part="function:pair_masses",
        rules=DIFFERENCES,
        why="Squared energies of ten thousand are known to 32, and the squared mass of two tracks is one.",
        source="https://github.com/hqucms/weaver-core/pull/15",
    ),
    Planted(
        name="masses-by-hyperbolic-cosine",
        healthy=MASSES,
        planted="""    apart = deta.cosh().to(low) - dphi.cos().to(low)  # culprit
    return (2 * pt[:, :, None] * pt[:, None, :] * apart.float()).clamp_min(1e-4).log()
""",
        precisions=MIXED,
        part="function:pair_masses",
        rules=DIFFERENCES,
        why="Both cosines are one but for some thousandths.",
        source="https://github.com/gboeing/osmnx/pull/131",
    ),
    Planted(
        name="wrapped-low",
        healthy="    apart = phi[:, :, None] - phi[:, None, :]\n",
        planted="    phi = phi.to(low)  # culprit\n    apart = (phi[:, :, None] - phi[:, None, :]).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:delta_phi",
        rules=DIFFERENCES,
        why="An angle of three is known to a 64th, and tracks of a jet are some hundredths apart.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="shifted-low",
        healthy="    return (apart + math.pi).remainder(2 * math.pi) - math.pi\n",
        planted="    return ((apart.to(low) + math.pi).remainder(2 * math.pi) - math.pi).float()  # culprit\n",
        precisions=MIXED,
        part="function:delta_phi",
        rules=DIFFERENCES,
        why="Pi is added to some hundredths, and taken off again.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="rapidity-by-ratio",
        healthy=RAPIDITY,
        planted="""    energy, pz = energy.to(low), pz.to(low)  # culprit
    return 0.5 * ((energy + pz) / (energy - pz).clamp_min(1e-3)).log().float()  # culprit
""",
        precisions=("bf16-mixed",),
        part="function:rapidities",
        rules=DIFFERENCES,
        why="A particle along the beam has almost as much momentum there as energy.",
        source="https://github.com/hqucms/weaver-core/pull/15",
    ),
    Planted(
        name="jet-mass-low",
        healthy=MASS,
        planted="""    total = p.sum(1).to(low)  # culprit
    return (total[:, 3].square() - total[:, :3].square().sum(-1)).float().clamp_min(1e-2).sqrt()  # culprit
""",
        precisions=("bf16-mixed",),
        part="function:jet_mass",
        rules=DIFFERENCES,
        why="Of a squared energy of a million 99.9 % are momentum.",
        source="https://github.com/hqucms/weaver-core/pull/15",
    ),
    Planted(
        name="jet-mass-overflows",
        healthy="    return ((energy - momentum) * (energy + momentum)).sqrt()\n",
        planted="    return (energy.to(low).square() - momentum.to(low).square()).float().clamp_min(1e-2).sqrt()  # culprit\n",
        precisions=("16-mixed",),
        part="function:jet_mass",
        rules=("overflow", "nan"),
        why="The square of an energy of 800 GeV is beyond float16, and infinity less infinity is no number.",
        source="https://github.com/pytorch/pytorch/issues/43211",
    ),
    Planted(
        name="errors-vanish",
        healthy="    return d0 * d0 / (sigma * sigma + 1e-14)\n",
        planted="""    d0, sigma = d0.to(low), sigma.to(low)
    return (d0 * d0).float() / ((sigma * sigma).float() + 1e-14)  # culprit
""",
        precisions=("16-mixed",),
        part="function:significance",
        rules=("underflow", "overflow"),
        why="The square of twenty micrometres is nought in float16, and of the denominator its guard is left.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
    ),
    Planted(
        name="guard-vanishes",
        healthy="    return d0 * d0 / (sigma * sigma + 1e-14)\n",
        planted="    return ((d0.to(low) / (sigma.to(low).square() + 1e-14).sqrt()).square()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:significance",
        rules=("underflow", "overflow", "nan"),
        why="Squares of errors are nought in float16, as their guard is, and what is divided by them is infinite.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
]

HARMLESS = [
    Harmless(
        name="angles-rounded",
        healthy="    return (apart + math.pi).remainder(2 * math.pi) - math.pi\n",
        changed="    return ((apart + math.pi).remainder(2 * math.pi) - math.pi).to(low).float()\n",
        precisions=MIXED,
        why="The angle is wrapped in float32, and rounded once.",
    ),
    Harmless(
        name="wrapped-by-arc",
        healthy="    return (apart + math.pi).remainder(2 * math.pi) - math.pi\n",
        changed="    return torch.atan2(apart.sin().to(low), apart.cos().to(low)).float()\n",
        precisions=MIXED,
        why="A sine of some hundredths keeps its digits, and the arc tangent reads the ratio.",
    ),
    Harmless(
        name="spread-low",
        healthy="    return (4 * pt[:, :, None] * pt[:, None, :] * spread).clamp_min(1e-4).log()\n",
        changed="    return (4 * pt[:, :, None] * pt[:, None, :] * spread).to(low).clamp_min(1e-4).float().log()\n",
        precisions=("bf16-mixed",),
        why="The squared mass is a product of positive numbers, and rounded once before its logarithm.",
    ),
    Harmless(
        name="rapidity-rounded",
        healthy="    return (pz / across.sqrt()).asinh()\n",
        changed="    return (pz / across.sqrt()).to(low).asinh().float()\n",
        precisions=MIXED,
        why="The difference is made in float32, and the inverse of the hyperbolic sine reads a ratio in a logarithm.",
    ),
    Harmless(
        name="jet-mass-by-rounded-factors",
        healthy="    return ((energy - momentum) * (energy + momentum)).sqrt()\n",
        changed="    return ((energy - momentum).to(low).float() * (energy + momentum).to(low).float()).sqrt()\n",
        precisions=MIXED,
        why="Difference and sum are made in float32, and rounded once each.",
    ),
    Harmless(
        name="significance-of-rounded",
        healthy="    return d0 * d0 / (sigma * sigma + 1e-14)\n",
        changed="    return (1e6 * d0).to(low).float().square() / (1e6 * sigma).to(low).float().square()\n",
        precisions=MIXED,
        why="Micrometres are rounded once each, and the guard was ten thousand times less than what it guards.",
    ),
    Harmless(
        name="places-low",
        healthy="    return pt.argsort(1, descending=True).argsort(1)\n",
        changed="    return pt.argsort(1, descending=True).argsort(1).to(low).long()\n",
        precisions=MIXED,
        why="There are twenty places.",
    ),
    Harmless(
        name="shares-low",
        healthy="    return pt / pt.sum(1, keepdim=True)\n",
        changed="    return (pt.to(low) / pt.sum(1, keepdim=True).to(low)).float()\n",
        precisions=MIXED,
        why="A ratio of two rounded numbers.",
    ),
    Harmless(
        name="weights-low",
        healthy="    return torch.where(same, 0.5 / same.float().mean(), 0.5 / (~same).float().mean())\n",
        changed="    return torch.where(same, 0.5 / same.to(low).mean(), 0.5 / (~same).to(low).mean())\n",
        precisions=MIXED,
        why="A mean of noughts and ones is summed in float32 by torch, and rounded once.",
    ),
]
