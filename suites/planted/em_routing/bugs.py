"""Bugs of EM routing: variances by moments, densities that underflow, guards that vanish, masses that run up."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="variance-by-moments",
        healthy="    var = (share[..., None] * (votes - mu[:, None]) ** 2).sum(1) + 1e-4\n",
        planted="    low = torch.bfloat16\n    far = 4 + votes\n"
        "    var = ((share[..., None] * far**2).sum(1).to(low) - ((4 + mu) ** 2).to(low)).float().clamp(min=0) + 1e-4  # culprit\n",
        precisions=BF16,
        part="function:m_step.1",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Squares of four are known to a 16th, and the variance is a tenth.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="density-underflows",
        healthy="    return torch.softmax(ln_p + torch.log(a_out[:, None] + 1e-8), -1)\n",
        planted="    p = (torch.exp(ln_p - 10) * a_out[:, None]).half()  # culprit\n    return (p / p.sum(-1, keepdim=True)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:e_step",
        rules=("underflow", "nan", "overflow"),
        why="Densities of sixteen numbers fall below the smallest number of float16 for every capsule, and nought by nought is NaN.",
        source="https://github.com/pytorch/pytorch/issues/61098",
    ),
    Planted(
        name="mass-runs-up-low",
        healthy="    mass = ra.sum(1)\n",
        planted="    mass = torch.zeros_like(ra[:, 0], dtype=torch.bfloat16)\n    for each in ra.unbind(1):\n"
        "        mass = mass + each.to(torch.bfloat16)  # culprit\n    mass = mass.float()\n",
        precisions=BF16,
        part="function:m_step.2",
        rules=("absorption", "accumulated-drift", "local-drift"),
        why="Terms of a twelfth are rounded to a 16th or an eighth once the sum is 8 or 16.",
        source="https://github.com/pytorch/pytorch/issues/61098",
    ),
    Planted(
        name="distances-low",
        healthy="    ln_p = -0.5 * ((votes - mu[:, None]) ** 2 / var[:, None] + torch.log(2 * math.pi * var[:, None])).sum(-1)\n",
        planted="    v, m = (8 + votes).to(torch.bfloat16), (8 + mu[:, None]).to(torch.bfloat16)  # culprit\n"
        "    apart = (v - m).float()  # culprit\n"
        "    ln_p = -0.5 * (apart**2 / var[:, None] + torch.log(2 * math.pi * var[:, None])).sum(-1)\n",
        precisions=BF16,
        part="function:e_step",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Votes are moved by eight and known to a 16th, and how far they are apart is a third.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
]

HARMLESS = [
    Harmless(
        name="grid-low",
        healthy='    y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")\n',
        changed='    y, x = torch.meshgrid(torch.arange(h, dtype=torch.half) + 0.5, torch.arange(w, dtype=torch.half) + 0.5, indexing="ij")\n'
        "    y, x = y.float(), x.float()\n",
        precisions=ALL,
        why="Halves up to four are exact.",
    ),
    Harmless(
        name="shares-rounded",
        healthy="    share = ra / (mass[:, None] + 1e-8)\n",
        changed="    share = (ra / (mass[:, None] + 1e-8)).to(torch.bfloat16).float()\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="Each share is rounded once, and a mean is over 128 of them.",
    ),
    Harmless(
        name="routes-rounded",
        healthy="    return torch.softmax(ln_p + torch.log(a_out[:, None] + 1e-8), -1)\n",
        changed="    return torch.softmax(ln_p + torch.log(a_out[:, None] + 1e-8), -1).to(torch.bfloat16).float()\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="Each weight is rounded once, after votes that a layer has rounded.",
    ),
    Harmless(
        name="log-variance-of-rounded",
        healthy="    cost = (beta_u + 0.5 * torch.log(var)).mean(-1) * mass\n",
        changed="    cost = (beta_u + 0.5 * torch.log(var.to(torch.bfloat16)).float()).mean(-1) * mass\n",
        precisions=BF16,
        why="A variance is rounded once, which moves its logarithm by a 500th.",
    ),
    Harmless(
        name="margin-squared-low",
        healthy="    return (wrong.sum(1) - margin**2).mean()\n",
        changed="    return (wrong.to(torch.bfloat16).float().sum(1) - margin**2).mean()\n",
        precisions=BF16,
        why="Each square is rounded once, and they are summed up in float32.",
    ),
    Harmless(
        name="uniform-low",
        healthy="            r = torch.full((B, I, n_out), 1.0 / n_out)\n",
        changed="            r = torch.full((B, I, n_out), 1.0 / n_out, dtype=torch.bfloat16).float()\n",
        precisions=BF16,
        why="All weights are off by the same factor, which the sum takes off again, but for masses by a 500th.",
    ),
    Harmless(
        name="guard-small",
        healthy="    share = ra / (mass[:, None] + 1e-8)\n",
        changed="    share = ra / (mass[:, None] + 1e-30)\n",
        precisions=ALL,
        why="A guard that is lost beside masses of ten.",
    ),
    Harmless(
        name="votes-counted-low",
        healthy="        per_vote = seen_of(mass, h * w * c.n_in)\n",
        changed="        per_vote = seen_of(mass, torch.tensor(float(h * w * c.n_in), dtype=torch.bfloat16).float())\n",
        precisions=ALL,
        why="128 votes.",
    ),
]
