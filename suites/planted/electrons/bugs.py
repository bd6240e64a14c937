"""Bugs of electrons: places that are nearly the same, energies of thousands beside one another, determinants that vanish."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
APART = "    return one[..., :, None, :] - other[..., None, :, :]\n"
MOST = "    most = logs.amax(-1, keepdim=True)\n"
MOST += "    total = (signs * (logs - most).exp()).sum(-1)\n    return total.sign(), total.abs().log() + most[..., 0]\n"
ENERGY = "    return (1 / pairs).sum(-1) - (charges.float() / to_nuclei).sum((1, 2))\n"
BESIDE = "    return energy - reference.float() / 1000\n"
OFF = "    off = energy - energy.median()\n"
TOTAL = "        total = total + each\n"
STEP = "    return (2 * (new - old)).clamp_max(0).exp()\n"

BUGS = [
    Planted(
        name="places-low",
        healthy=APART,
        planted="    one, other = one.to(low), other.to(low)  # culprit\n"
        "    return (one[..., :, None, :] - other[..., None, :, :]).float()  # culprit\n",
        precisions=ALL,
        part="function:potential",
        rules=DRIFTS,
        why="Places of seven are known to a 32nd in bfloat16, and two electrons are a hundredth apart.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="units-low",
        healthy="    return units.float() / 10_000\n",
        planted="    return (units.to(low) / 10_000).float()  # culprit\n",
        precisions=BF16,
        part="function:potential",
        rules=(*DRIFTS, "integer-rounding"),
        why="Of 70 000 units bfloat16 knows every 512th, and electrons differ by a hundred.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="determinants-vanish",
        healthy=MOST,
        planted="    total = (signs * logs.to(low).exp()).sum(-1)  # culprit\n"
        "    return total.sign(), (total.abs() + 1e-30).float().log()  # culprit\n",
        precisions=("16-mixed",),
        part="function:mixed.1",
        rules=("underflow", "vanished-constant", "nan", *DRIFTS),
        why="A determinant of e to the minus 15 is below the smallest number of float16.",
        source="https://github.com/pytorch/pytorch/issues/43211",
    ),
    Planted(
        name="energies-low",
        healthy=BESIDE,
        planted="    return (energy.to(low) - (reference.float() / 1000).to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:beside",
        rules=DRIFTS,
        why="Energies of some hundred hartree are known to one or two, and differ by as much.",
        source="https://github.com/materialyzeai/matgl/pull/87",
    ),
    Planted(
        name="reference-low",
        healthy=BESIDE,
        planted="    return energy - reference.to(low).float() / 1000  # culprit\n",
        precisions=BF16,
        part="function:beside",
        rules=(*DRIFTS, "integer-rounding"),
        why="Of some hundred thousand thousandths bfloat16 knows every 1024th or 2048th.",
        source="https://github.com/torchmd/torchmd-net/pull/275",
    ),
    Planted(
        name="acceptance-low",
        healthy=STEP,
        planted="    return (2 * (new.to(low) - old.to(low))).clamp_max(0).exp().float()  # culprit\n",
        precisions=BF16,
        part="function:acceptance",
        rules=DRIFTS,
        why="Logarithms of twelve are known to a 16th, and a step changes them by some hundredths.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
    Planted(
        name="potential-low",
        healthy=ENERGY,
        planted="    pairs, to_nuclei = pairs.to(low), to_nuclei.to(low)  # culprit\n"
        "    return ((1 / pairs).sum(-1) - (charges.to(low) / to_nuclei).sum((1, 2))).float()  # culprit\n",
        precisions=ALL,
        part="function:beside",
        rules=DRIFTS,
        why="The energy is known to one or two hartree, and so is what it is beside the reference.",
        source="https://github.com/torchmd/torchmd-net/pull/275",
    ),
]

HARMLESS = [
    Harmless(
        name="charges-low",
        healthy=ENERGY,
        changed="    return (1 / pairs).sum(-1) - (charges.to(low).float() / to_nuclei).sum((1, 2))\n",
        precisions=ALL,
        why="Charges are whole numbers below 256.",
    ),
    Harmless(
        name="determinants-by-logsumexp",
        healthy=MOST,
        changed="    total = (signs * logs.exp()).sum(-1)\n    return total.sign(), total.abs().log()\n",
        precisions=ALL,
        why="float32 has room for determinants of e to the minus 30.",
    ),
    Harmless(
        name="energies-rounded-late",
        healthy=BESIDE,
        changed="    return (energy - reference.float() / 1000).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="acceptance-rounded",
        healthy=STEP,
        changed="    return (2 * (new - old)).clamp_max(0).exp().to(low).float()\n",
        precisions=ALL,
        why="A chance is rounded once.",
    ),
    Harmless(
        name="mean-of-rounded",
        healthy=TOTAL,
        changed="        total = total + each.to(low).float()\n",
        precisions=ALL,
        why="Each energy is rounded once, and the sum is float32.",
    ),
]
