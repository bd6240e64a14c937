"""Bugs of graph networks: counts and sums over the neighbours of hubs, spreads, edge softmax, edge lengths."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="degree-low",
        healthy="    ones = torch.ones(target.shape, dtype=torch.float32, device=messages.device)\n"
        "    return torch.zeros(NODES, dtype=ones.dtype, device=messages.device).index_add(0, target, ones)\n",
        planted="    ones = torch.ones(target.shape, dtype=messages.dtype, device=messages.device)\n"
        "    return torch.zeros(NODES, dtype=ones.dtype, device=messages.device).index_add(0, target, ones)  # culprit\n",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:degrees",
        rules=("absorption", "integer-rounding", "local-drift"),
        why="Counting up by one ends at 256 in bfloat16, so a hub of 900 edges is taken for one of 256, and its mean is "
        "more than three times too large.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
    ),
    Planted(
        name="segment-sum-by-cumsum",
        healthy="    summed = torch.zeros(NODES, messages.shape[-1], device=messages.device).index_add(0, target, messages.float())\n",
        planted="    order, ends = target.argsort(stable=True), torch.bincount(target, minlength=NODES).cumsum(0)\n"
        "    running = torch.cumsum(messages[order], 0, dtype=messages.dtype)  # culprit\n"
        "    running = torch.cat([running.new_zeros(1, running.shape[-1]), running])\n"
        "    summed = torch.diff(running[ends], dim=0, prepend=running[:1]).float()\n",
        precisions=ALL,
        part="function:segment_mean",
        rules=("cancellation", "amplified-rounding", "absorption", "accumulated-drift", "local-drift"),
        why="Sums of segments are differences of a running sum over all edges. That reaches 16000, where bfloat16 moves by 64, and most nodes' sums "
        "are about 40.",
        source="https://github.com/nv-tlabs/lift-splat-shoot/blob/master/src/tools.py",
    ),
    Planted(
        name="spread-by-squares",
        healthy="    centred = messages.float() - segment_mean(messages, target, degree)[target]\n"
        "    variance = segment_mean(centred.square(), target, degree)\n"
        "    return (variance + 1e-5).sqrt()\n",
        planted="    mean, square = segment_mean(messages, target, degree), segment_mean(messages * messages, target, degree)\n"
        "    variance = square.to(messages.dtype) - mean.to(messages.dtype) * mean.to(messages.dtype)  # culprit\n"
        "    return (functional.relu(variance) + 1e-5).sqrt()\n",
        precisions=ALL,
        part="function:segment_spread",
        rules=("cancellation", "amplified-rounding", "accumulated-drift"),
        why="The mean of the squares is about 16 and so is the square of the mean; what is left of their difference in a low format is rounding, "
        "and many nodes have no spread at all.",
        source="https://github.com/pyg-team/pytorch_geometric/issues/646",
    ),
    Planted(
        name="softmax-unshifted",
        healthy="        weights = torch.exp((scores - highest[target]).float())\n",
        planted="        weights = torch.exp(scores)  # culprit\n",
        precisions=("16-mixed",),
        part="function:edge_softmax",
        rules=("overflow", "nan"),
        why="The exponentials of the scores are taken without subtracting the highest: from 11.1 on float16 ends, and Inf over Inf is NaN.",
        source="https://github.com/pyg-team/pytorch_geometric/issues/53",
    ),
    Planted(
        name="distances-expanded",
        healthy="    apart = places[source] - places[target]\n    return (apart * apart).sum(-1).float()\n",
        planted="    places = places.float()\n"
        "    square, products = (places * places).sum(-1), places @ places.T  # culprit\n"
        "    return square[source] + square[target] - 2 * products[source, target]\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:edge_lengths",
        rules=("cancellation", "amplified-rounding", "accumulated-drift", "overflow", "nan"),
        why="Autocast computes the product of the places low: 80000 rounded to a step of 512, where squared lengths are "
        "about 200 (float16 ends before "
        "that). In float32 the same lines are good to a hundredth.",
        source="https://github.com/lucidrains/vector-quantize-pytorch/issues/106",
    ),
]
