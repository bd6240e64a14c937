"""Bugs of counts of people: totals subtracted low, compartments of millions, small chances, days since 1970, differences of lgamma."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation", "integer-rounding")
DAILY = "        return (self.total[:, 1:] - self.total[:, :-1]).float()\n"
LOGS = "        logs = self.total.float().log()\n"
CHANCE = "        return -torch.expm1(-pressure)\n"
MOVED = "                susceptible, exposed, infectious = susceptible - infected, exposed + infected - ill, infectious + ill - well\n"

BUGS = [
    Planted(
        name="totals-low",
        healthy=DAILY,
        planted="        total = self.total.to(self.dtype)  # culprit\n"
        "        return (total[:, 1:] - total[:, :-1]).clamp_min(0).float()  # culprit\n",
        precisions=BF16,
        part="function:Reports.incidence",
        rules=DRIFTS,
        why="A total of 300 000 is known to 2048 in bfloat16, and a day adds a thousand.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="days-low",
        healthy="        angle = 2 * math.pi * self.day.float() / 365.2425\n",
        planted="        angle = 2 * math.pi * self.day.to(self.dtype) / 365.2425  # culprit\n",
        precisions=ALL,
        part="function:Reports.season",
        rules=(*DRIFTS, "overflow", "nan"),
        why="Of 18 300 days since 1970 bfloat16 knows every 128th; in float16 days times two pi overflow before they are divided.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="growth-low",
        healthy=LOGS,
        planted="        logs = self.total.float().log().to(self.dtype)  # culprit\n",
        more=(("        return logs[:, 7:] - logs[:, :-7]\n", "        return logs[:, 7:] - logs[:, :-7]  # culprit\n"),),
        precisions=MIXED,
        part="function:Reports.growth",
        rules=DRIFTS,
        why="A logarithm of twelve is known to a sixteenth in bfloat16, and a week's growth is a fiftieth.",
        source="https://github.com/pytorch/pytorch/issues/88939",
    ),
    Planted(
        name="susceptible-low",
        healthy=MOVED,
        planted="                susceptible = (susceptible - infected).to(reports.dtype)  # culprit\n"
        "                exposed, infectious = exposed + infected - ill, infectious + ill - well\n",
        precisions=BF16,
        part="result",
        rules=("absorption", *DRIFTS),
        why="Of nine million people bfloat16 knows every 32 768th, and a thousand are infected.",
        source="https://github.com/vllm-project/vllm/issues/13466",
    ),
    Planted(
        name="people-overflow",
        healthy="        pressure = rate * (infectious / people) / SUBSTEPS\n        return susceptible * self.chance(pressure)\n",
        planted="        susceptible, infectious, people = susceptible.half(), infectious.half(), people.half()  # culprit\n"
        "        return (rate / SUBSTEPS * (susceptible * infectious / people)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:Compartments.infected",
        rules=("overflow", "nan"),
        why="Nobody counts millions in float16.",
        source="https://github.com/open-mmlab/mmdetection/issues/5237",
    ),
    Planted(
        name="chance-by-one-less",
        healthy=CHANCE,
        planted="        return 1 - (-pressure.half()).exp().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:Compartments.chance",
        rules=DRIFTS,
        why="A pressure of a ten-thousandth is less than what float16 has below one.",
        source="https://github.com/pytorch/pytorch/issues/80226",
    ),
    Planted(
        name="ways-low",
        healthy="    ways = torch.lgamma(counts + spread) - torch.lgamma(spread) - torch.lgamma(counts + 1)\n",
        planted="    above, below = torch.lgamma(counts + spread).to(dtype), torch.lgamma(counts + 1).to(dtype)  # culprit\n"
        "    ways = above - torch.lgamma(spread).to(dtype) - below  # culprit\n",
        precisions=BF16,
        part="function:surprise",
        rules=DRIFTS,
        why="lgamma of two thousand is 13 000, which bfloat16 knows to 64; the difference is 50.",
        source="https://github.com/scverse/scvi-tools/issues/2542",
    ),
]

HARMLESS = [
    Harmless(
        name="incidence-rounded",
        healthy="        return self.daily * (100_000 / self.people.float())[:, None]\n",
        changed="        return self.daily.to(self.dtype).float() * (100_000 / self.people.float())[:, None]\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="A day's cases are rounded once, after the totals were subtracted as whole numbers.",
    ),
    Harmless(
        name="season-rounded",
        healthy="        return torch.stack([angle.sin(), angle.cos()], -1)\n",
        changed="        return torch.stack([angle.sin(), angle.cos()], -1).to(self.dtype).float()\n",
        precisions=ALL,
        why="Each is rounded once.",
    ),
    Harmless(
        name="growth-of-the-quotient",
        healthy=LOGS + "        return logs[:, 7:] - logs[:, :-7]\n",
        changed="        more = (self.total[:, 7:] - self.total[:, :-7]).float() / self.total[:, :-7]\n"
        "        return more.to(self.dtype).log1p().float()\n",
        precisions=ALL,
        why="What is added to one is rounded, and log1p of a small number is that number.",
    ),
    Harmless(
        name="rates-rounded",
        healthy="            new = self.compartments(reports, rates)\n",
        changed="            new = self.compartments(reports, rates.to(reports.dtype).float())\n",
        precisions=MIXED,
        why="A rate is known to a rounding anyway; it comes from a layer that computes low.",
    ),
    Harmless(
        name="chance-in-two-terms",
        healthy=CHANCE,
        changed="        return pressure - pressure.square().to(torch.bfloat16).float() / 2 + pressure**3 / 6\n",
        precisions=BF16,
        why="The second term is a ten-thousandth of the first.",
    ),
    Harmless(
        name="share-rounded",
        healthy="    return torch.log1p(-new / people[:, None])\n",
        changed="    return torch.log1p(-(new / people[:, None]).to(dtype).float())\n",
        precisions=BF16,
        why="log1p of a small number is that number, rounded once.",
    ),
]
