"""Bugs of a particle filter: places of a large hall, likelihoods that underflow, running sums of weights, variances by moments."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")
LOW = "torch.get_autocast_dtype('cpu')"

BUGS = [
    Planted(
        name="steps-absorbed",
        healthy="    x = state[..., 0] + step * torch.cos(heading)\n    y = state[..., 1] + step * torch.sin(heading)\n",
        planted=f"    low = {LOW}\n"
        "    x = (state[..., 0].to(low) + (step * torch.cos(heading)).to(low)).float()  # culprit\n"
        "    y = (state[..., 1].to(low) + (step * torch.sin(heading)).to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="result",
        rules=("absorption", "accumulated-drift", "amplified-rounding", "local-drift"),
        why="A step is a metre or less, and bfloat16 knows 300 metres to two.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
    ),
    Planted(
        name="ranges-expanded",
        healthy="    apart = state[..., None, :2] - beacons\n    return torch.sqrt((apart * apart).sum(-1) + 1e-6)\n",
        planted=f"    one, two = (state[..., :2] / 8).to({LOW}), (beacons / 8).to({LOW})\n"
        "    squares = (one * one).sum(-1, keepdim=True) + (two * two).sum(-1)\n"
        "    return 8 * torch.sqrt((squares - 2 * one @ two.T).clamp(min=0).float() + 1e-6)  # culprit\n",
        precisions=MIXED,
        part="function:ranges",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift"),
        why="Squares of places less twice their product: of 5000 bfloat16 knows 16.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
    Planted(
        name="likelihood-underflows",
        healthy="    logw = logw + ll\n    return logw - torch.logsumexp(logw, -1, keepdim=True)\n",
        planted="    w = torch.exp(logw).half() * torch.exp(ll).half()  # culprit\n"
        "    return torch.log((w / w.sum(-1, keepdim=True)).float() + 1e-30)  # culprit\n",
        precisions=("16-mixed",),
        part="function:reweight",
        rules=("underflow", "nan", "overflow"),
        why="Products of six densities are below the smallest number of float16, and their sum is nought.",
        source="https://github.com/chainer/chainer/issues/6168",
    ),
    Planted(
        name="weights-run-up-low",
        healthy="    cdf = torch.cumsum(torch.exp(logw.detach()), -1)\n",
        planted="    w = torch.exp(logw.detach()).to(torch.bfloat16)\n    total, cdf = w.new_zeros(B), []\n    for each in w.unbind(-1):\n"
        "        total = total + each  # culprit\n        cdf.append(total.float())\n    cdf = torch.stack(cdf, -1)\n",
        precisions=("bf16-mixed",),
        part="loss",
        rules=("absorption", "accumulated-drift", "decision-flip", "local-drift"),
        why="Small weights add nothing to a running sum of a half.",
        source="https://github.com/pytorch/executorch/pull/20089",
    ),
    Planted(
        name="area-by-moments",
        healthy="    return (w * (state[..., :2] - mean) ** 2).sum(1)\n",
        planted=f"    low = {LOW}\n"
        "    return ((w * state[..., :2] ** 2 / 64).sum(1).to(low) - (mean[:, 0] ** 2 / 64).to(low)).float() * 64  # culprit\n",
        precisions=MIXED,
        part="function:spread_of",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Squares of 300 metres are known to some hundreds of square metres, and the variance is one.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
]

HARMLESS = [
    Harmless(
        name="correction-rounded",
        healthy="            odo = odometry[:, t] + 0.1 * torch.tanh(fix[:, t])\n",
        changed=f"            odo = odometry[:, t] + 0.1 * torch.tanh(fix[:, t]).to({LOW}).float()\n",
        precisions=MIXED,
        why="What a low layer made is rounded once more, and is a hundredth of what it is added to.",
    ),
    Harmless(
        name="moved-rounded",
        healthy="            means.append(mean - start[:, :2])\n",
        changed=f"            means.append((mean - start[:, :2]).to({LOW}).float())\n",
        precisions=MIXED,
        why="How far it has moved is rounded once, after the difference has been taken.",
    ),
    Harmless(
        name="logarithm-that-is-taken-off",
        healthy="    return (-0.5 * z * z - torch.log(spread)).sum(-1)\n",
        changed=f"    return (-0.5 * z * z - torch.log(spread).to({LOW}).float()).sum(-1)\n",
        precisions=MIXED,
        why="All particles have the same error, which the sum over particles takes off again.",
    ),
    Harmless(
        name="marks-low",
        healthy="    marks = (torch.arange(N) + u[:, None]) / N\n",
        changed="    marks = (torch.arange(N, dtype=torch.bfloat16).float() + u[:, None]) / N\n",
        precisions=MIXED,
        why="Whole numbers up to 127.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    w = torch.exp(logw)[..., None]\n    return (w * state[..., :2]).sum(1)\n",
        changed="    w = torch.exp(logw).double()[..., None]\n    return (w * state[..., :2]).sum(1).float()\n",
        precisions=MIXED,
        why="A sum in float64.",
    ),
    Harmless(
        name="area-of-rounded-offsets",
        healthy="    return (w * (state[..., :2] - mean) ** 2).sum(1)\n",
        changed="    return (w * (state[..., :2] - mean).to(torch.bfloat16).float() ** 2).sum(1)\n",
        precisions=("bf16-mixed",),
        why="What is left after the mean has been taken off is rounded once, each for itself.",
    ),
    Harmless(
        name="shares-rounded",
        healthy="    return torch.exp(-torch.logsumexp(2 * logw, -1)) / N\n",
        changed=f"    return (torch.exp(-torch.logsumexp(2 * logw, -1)) / N).to({LOW}).float()\n",
        precisions=MIXED,
        why="A share is rounded once.",
    ),
    Harmless(
        name="turns-of-the-circle",
        healthy="    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi\n",
        changed="    return torch.atan2(torch.sin(angle), torch.cos(angle))\n",
        precisions=MIXED,
        why="The same angle by another way, in float32.",
    ),
]
