"""Bugs of a spline flow: pixels and noise in one low number, edges kept low, a root of rounded numbers, exponentials of unlikely points."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="dequantise-low",
        healthy="    return (pixels + noise.float()) / 256\n",
        planted="    return ((pixels.to(low) + noise.to(low)) / 256).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:opened",
        rules=("absorption", "cancellation", "amplified-rounding", "local-drift"),
        why="A pixel of 200 with a third on it is 200 in bfloat16, and one of 255 with a half is 256, the logarithm of whose rest is large.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
    ),
    Planted(
        name="logit-low",
        healthy="    share = EDGE + (1 - 2 * EDGE) * share\n",
        planted="    share = (EDGE + (1 - 2 * EDGE) * share).to(low)  # culprit\n",
        precisions=ALL,
        part="function:opened",
        rules=("cancellation", "amplified-rounding", "vanished-constant", "nan", "overflow", "absorption", "underflow"),
        why="A share of 0.9995 is one in bfloat16, and the logarithm of what is left is minus infinity.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
        more=(
            (
                "    left, right = torch.log(share), torch.log(1 - share)\n",
                "    left, right = torch.log(share).float(), torch.log(1 - share).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="kelvin-low",
        healthy="    return (context.float() - 288.15) / 6\n",
        planted="    return ((context.to(low) - 288.15) / 6).float()  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:standardised",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Of 290 kelvin bfloat16 knows every second one, and float16 quarters.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2046",
    ),
    Planted(
        name="edges-low",
        healthy="    edges = 2 * BOUND * functional.pad(torch.cumsum(share, -1), (1, 0)) - BOUND\n",
        planted="    edges = 2 * BOUND * functional.pad(torch.cumsum(share.to(low), -1), (1, 0)) - BOUND  # culprit\n",
        precisions=ALL,
        part="function:knots.1",
        rules=("cancellation", "amplified-rounding", "absorption", "accumulated-drift", "local-drift"),
        why="Edges up to 6 are known to a 32nd, and narrow bins are less wide than that.",
        source="https://github.com/bayesiains/nflows/issues/87",
        more=(
            (
                "    return edges[..., :-1], edges[..., 1:] - edges[..., :-1]\n",
                "    return edges[..., :-1].float(), (edges[..., 1:] - edges[..., :-1]).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="root-low",
        healthy="    under = (b.square() - 4 * a * c).clamp(min=0)\n    return (2 * c / (-b - torch.sqrt(under))).clamp(0, 1)\n",
        planted="    a, b, c = a.to(low), b.to(low), c.to(low)\n"
        "    under = (b.square() - 4 * a * c).clamp(min=0)  # culprit\n"
        "    return ((-b + torch.sqrt(under)) / (2 * a)).clamp(0, 1).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:root",
        rules=("cancellation", "amplified-rounding", "nan", "local-drift"),
        why="Where the spline is nearly straight, both terms of the root are the same number up to a few bits.",
        source="https://github.com/bayesiains/nflows/issues/87",
    ),
    Planted(
        name="mixture-by-exponentials",
        healthy="    return torch.logsumexp(logs, -1)\n",
        planted="    return torch.log(torch.exp(logs).to(low).float().sum(-1))  # culprit\n",
        precisions=("16-mixed",),
        part="function:mixture",
        rules=("underflow", "nan", "overflow"),
        why="The exponential of -60 is zero in float16, and so is the sum of all parts.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="determinant-as-product",
        healthy="    return left - right, -(left + right).sum(-1)\n",
        planted="    return left - right, -torch.log((share * (1 - share)).to(low).prod(-1)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:opened.1",
        rules=("underflow", "nan", "overflow", "amplified-rounding"),
        why="A product of twelve numbers of a tenth is beneath float16.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
    ),
]

HARMLESS = [
    Harmless(
        name="pixels-low",
        healthy="    return (pixels + noise.float()) / 256\n",
        changed="    return (pixels.to(low).float() + noise.float()) / 256\n",
        precisions=ALL,
        why="Pixels are whole numbers up to 255, which each format holds.",
    ),
    Harmless(
        name="sum-in-two-numbers",
        healthy="    return -(base + slope) / (PIXELS * math.log(2))\n",
        changed="    high = (base + slope).to(low)\n    rest = (base + slope - high.float()).to(low)\n"
        "    return -(high.float() + rest.float()) / (PIXELS * math.log(2))\n",
        precisions=ALL,
        why="What rounding takes off is kept in a second number, so the sum has twice the digits.",
    ),
]
