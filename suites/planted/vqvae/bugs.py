"""Bugs of codebooks: distances, counts, smoothing and entropy in a low format."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="distances-low",
        healthy="    values, codes = values.float(), codes.float()\n    return (values.unsqueeze(1) - codes.unsqueeze(0)).square().sum(-1)\n",
        planted="    squares = values.pow(2).sum(-1, keepdim=True) + codes.to(values.dtype).pow(2).sum(-1)  # culprit\n"
        "    return squares - 2 * values @ codes.to(values.dtype).T  # culprit\n",
        precisions=MIXED,
        part="function:squared_distances",
        rules=("cancellation", "amplified-rounding", "decision-flip", "local-drift"),
        why="Values and codes are 3 on average: their squares are 150, of which bfloat16 knows the ones, and distances are 1 to 2. "
        "Codes are chosen by chance.",
        source="https://github.com/lucidrains/vector-quantize-pytorch/pull/144",
    ),
    Planted(
        name="counts-low",
        healthy="    counts = torch.zeros(CODES, device=like.device)\n",
        planted="    counts = torch.zeros(CODES, device=like.device, dtype=like.dtype)\n",
        precisions=("bf16-mixed",),
        part="function:code_counts",
        rules=("absorption", "integer-rounding", "local-drift"),
        why="A count in bfloat16 stands still at 256. The background's code is chosen a thousand times.",
        source="https://github.com/tenstorrent/tt-metal/pull/53386",
        more=(
            (
                "    return counts.index_add(0, chosen, torch.ones(len(chosen), dtype=counts.dtype)).float()\n",
                "    return counts.index_add(0, chosen, torch.ones(len(chosen), dtype=counts.dtype)).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="smoothing-low",
        healthy="    sizes = sizes.float()\n    total = sizes.sum()\n    shares = (sizes + 1e-5) / (total + CODES * 1e-5)\n",
        planted="    sizes = sizes.to(like.dtype)\n    total = sizes.sum()\n"
        "    shares = (sizes + 1e-5) / (total + CODES * 1e-5)  # culprit\n",
        precisions=("16-mixed",),
        part="function:means",
        rules=("vanished-constant", "underflow", "nan", "overflow", "local-drift"),
        why="The share of a code that nobody chooses, 1e-5 of two thousand, is below float16's least number: it is zero, and so is what "
        "the running sum is divided by.",
        more=(
            (
                "    return sums / (shares * total).unsqueeze(1)\n",
                "    return sums / (shares.float() * total.float()).unsqueeze(1)\n",
            ),
        ),
        source="https://github.com/lisa-lab/DeepLearningTutorials/pull/86",
    ),
    Planted(
        name="perplexity-low",
        healthy="    shares = counts.float() / counts.float().sum()\n    return torch.exp(-(shares * torch.log(shares + 1e-10)).sum())\n",
        planted="    shares = (counts / counts.sum()).to(like.dtype)\n"
        "    return torch.exp(-(shares * torch.log(shares + 1e-10)).sum().float())  # culprit\n",
        precisions=("16-mixed",),
        part="function:perplexity",
        rules=("vanished-constant", "underflow", "nan", "overflow"),
        why="1e-10 is zero in float16, so codes that nobody chose add zero times minus infinity.",
        source="https://github.com/Xilinx/brevitas/pull/957",
    ),
]
