"""Bugs of a battery's state: charge that is counted, voltages that are nearly the same, inverse temperatures, and powers of nearly one."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
COUNT = "        charge = charge - each\n"
OVER = "    return open_voltage(charge) - voltage.float() / 1000\n"
FALL = "    fall = (voltage[:, 1:] - voltage[:, :-1]).float()\n"
SPEED = "    return torch.exp(ENERGY / GAS * (1 / REFERENCE - 1 / kelvin))\n"
KEPT = "    kept = 1 - 2e-4 * speed.mean(1)\n"
FLOWN = "    flown = charge[:, :-8] - charge[:, 8:]\n"

BUGS = [
    Planted(
        name="charge-counted-low",
        healthy=COUNT,
        planted="        charge = (charge - each).bfloat16()  # culprit\n",
        more=(("    return torch.stack(charges, 1)\n", "    return torch.stack(charges, 1).float()\n"),),
        precisions=BF16,
        part="function:coulombs",
        rules=(*DRIFTS, "absorption"),
        why="Ten seconds take a thousandth of the charge, and bfloat16 knows a 256th.",
        source="https://github.com/vllm-project/vllm-omni/pull/4341",
    ),
    Planted(
        name="voltages-low",
        healthy=OVER,
        planted="    rest, seen = open_voltage(charge).bfloat16(), (voltage.float() / 1000).bfloat16()  # culprit\n"
        "    return (rest - seen).float()  # culprit\n",
        precisions=BF16,
        part="function:overvoltage",
        rules=DRIFTS,
        why="Volts are rounded to a 64th, and what current takes off them is a few hundredths.",
        source="https://github.com/powsybl/powsybl-core/issues/1043",
    ),
    Planted(
        name="falls-of-rounded-millivolts",
        healthy=FALL,
        planted="    voltage = voltage.to(torch.bfloat16)  # culprit\n    fall = (voltage[:, 1:] - voltage[:, :-1]).float()  # culprit\n",
        precisions=BF16,
        part="function:resistance",
        rules=(*DRIFTS, "integer-rounding"),
        why="Millivolts are rounded to the sixteenth, and a step of the current makes some tens.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="inverse-temperatures-low",
        healthy=SPEED,
        planted="    inverse = (1 / kelvin).bfloat16()  # culprit\n"
        "    return torch.exp(ENERGY / GAS * (1 / REFERENCE - inverse.float()))  # culprit\n",
        precisions=BF16,
        part="function:arrhenius",
        rules=DRIFTS,
        why="One by 298 and one by 303 are the same in bfloat16 but for a step or two, and 6000 times their difference is in the exponent.",
        source="https://github.com/e2nIEE/pandapower/issues/2338",
    ),
    Planted(
        name="kept-low",
        healthy=KEPT,
        planted="    kept = (1 - 2e-4 * speed.mean(1)).to(LOW).float()  # culprit\n",
        more=(("STEPS = 1\n", "STEPS = 1\nLOW = torch.bfloat16\n"),),
        precisions=BF16,
        part="function:fade",
        rules=DRIFTS,
        why="0.9998 is one in bfloat16: no cell ages.",
        source="https://github.com/ml-explore/mlx-lm/issues/565",
    ),
    Planted(
        name="kept-half",
        healthy=KEPT,
        planted="    kept = (1 - 2e-4 * speed.mean(1)).half().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:fade",
        rules=DRIFTS,
        why="0.9998 and its neighbours are rounded to 1 or 0.9995 in float16.",
        source="https://github.com/ml-explore/mlx-lm/issues/565",
    ),
    Planted(
        name="flown-of-rounded-charge",
        healthy=FLOWN,
        planted="    charge = charge.to(torch.bfloat16)  # culprit\n    flown = (charge[:, :-8] - charge[:, 8:]).float()  # culprit\n",
        precisions=BF16,
        part="function:incremental_capacity",
        rules=DRIFTS,
        why="Eight times take a hundredth of the charge, and it is rounded to a 256th.",
        source="https://github.com/kscalelabs/minppo/pull/19",
    ),
]

HARMLESS = [
    Harmless(
        name="flow-rounded",
        healthy="    flow = current.float() * PERIOD / 3600 / CAPACITY\n",
        changed="    flow = (current.float() * PERIOD / 3600 / CAPACITY).bfloat16().float()\n",
        precisions=BF16,
        why="What flows is rounded, and is added up in float32.",
    ),
    Harmless(
        name="speed-rounded",
        healthy=SPEED,
        changed="    return torch.exp(ENERGY / GAS * (1 / REFERENCE - 1 / kelvin)).bfloat16().float()\n",
        precisions=BF16,
        why="A factor of ageing is rounded once, and a mean of it is taken.",
    ),
    Harmless(
        name="health-rounded",
        healthy="    return kept ** cycles.float()\n",
        changed="    return (kept ** cycles.float()).half().float()\n",
        precisions=("16-mixed",),
        why="The power is rounded, and not what it is a power of.",
    ),
    Harmless(
        name="share-rounded",
        healthy="    share = place - below\n",
        changed="    share = (place - below).half().float()\n",
        precisions=("16-mixed",),
        why="A share between two entries is rounded, which are tenths of a volt apart.",
    ),
]
