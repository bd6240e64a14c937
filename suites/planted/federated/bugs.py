"""Bugs of federated learning: masks that are rounded, sums that stand still, lengths of scaled gradients, and roots near one."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed",)
HALF = ("16-mixed",)
MIXED = ("bf16-mixed", "16-mixed")
LOOP = ("watch",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan")
RATE = "    return SERVER * (1 - (done.float() / ROUNDS).sqrt())\n"
LENGTH = "    return torch.stack([each.float().square().sum() for each in moves]).sum().sqrt()\n"
WHOLES = "    return [torch.remainder((GRID * each).round().long() + hidden, RING) for each, hidden in zip(moves, mask, strict=True)]\n"
OPENED = "    return [(torch.remainder(each + RING // 2, RING) - RING // 2).float() / GRID for each in total]\n"
EVERY = "    every = torch.stack(sent)\n    return every.var(0, correction=0).sum() / every.mean(0).square().sum()\n"
YOGI = "    squared = move.square()\n    return moment - (1 - BETA) * torch.sign(moment - squared) * squared\n"
SPENT = "    share = clients / 9_000\n    return budget + 46 * share**2 / 0.8**2\n"
LERP = "            slow.lerp_(fast, 1 - KEEP)\n"
TRUST = "    return (1 + ages.float()).rsqrt()\n"
ROWS = "        model.rows += rows.shape[1]\n"
MOVED = "    return [(new - old).detach() for new, old in zip(client.parameters(), server.parameters(), strict=True)]\n"
BACKWARD = "        scaler.scale(cost).backward()\n        scaler.step(local)\n"

BUGS = [
    Planted(
        name="rate-low",
        healthy=RATE,
        planted="    root = (done.float() / ROUNDS).sqrt().bfloat16()  # culprit\n    return SERVER * (1 - root.float())\n",
        precisions=BF16,
        part="function:rate",
        rules=DRIFTS,
        why="Near the end the root is one less a seventieth, which bfloat16 knows to a 256th.",
        source="https://github.com/tensorflow/tensorflow/issues/38357",
        through=LOOP,
    ),
    Planted(
        name="length-half",
        healthy=LENGTH,
        planted="    return torch.stack([(4e-3 * each).half().square().sum() for each in moves]).sum().sqrt().float() / 4e-3  # culprit\n",
        precisions=HALF,
        part="function:length",
        rules=("underflow", *DRIFTS),
        why="A move of a ten-thousandth has a square that float16 does not hold, so a client is not cut.",
        source="https://github.com/google-deepmind/jax_privacy/pull/309",
        through=LOOP,
    ),
    Planted(
        name="masked-low",
        healthy=WHOLES,
        planted="    near = [((GRID * each).round() + hidden).float() for each, hidden in zip(moves, mask, strict=True)]\n"
        "    return [torch.remainder(each.bfloat16(), RING).long() for each in near]  # culprit\n",
        precisions=BF16,
        part="function:opened",
        rules=(*WHOLE, "overflow"),
        why="A mask of sixteen millions is known to thousands, and does not go away in the sum.",
        source="https://github.com/FederatedAI/FATE/pull/5639",
        through=LOOP,
    ),
    Planted(
        name="opened-low",
        healthy=OPENED,
        planted="    near = [torch.remainder(each + RING // 2, RING).float() for each in total]\n"
        "    return [(each.bfloat16().float() - RING // 2) / GRID for each in near]  # culprit\n",
        precisions=BF16,
        part="function:opened",
        rules=WHOLE,
        why="Half of the ring is eight millions, and a move is some thousands more.",
        source="https://github.com/tenstorrent/tt-mlir/pull/8998",
        through=LOOP,
    ),
    Planted(
        name="moments-half",
        healthy=YOGI,
        planted="    squared = (move / 16).half().square()  # culprit\n    squared = 256 * squared.float()\n"
        "    return moment - (1 - BETA) * torch.sign(moment - squared) * squared\n",
        precisions=HALF,
        part="function:yogi",
        rules=("underflow", *DRIFTS),
        why="Squares of moves of a thousandth are below float16's smallest number.",
        source="https://github.com/Nerogar/OneTrainer/issues/1005",
        through=LOOP,
    ),
    Planted(
        name="budget-low",
        healthy=SPENT,
        planted="    share = clients / 9_000\n    return (budget.bfloat16() + 46 * share**2 / 0.8**2).float()  # culprit\n",
        precisions=BF16,
        part="buffer:budget",
        rules=("absorption", *DRIFTS),
        why="Each round spends a three-hundredth, and from one on bfloat16 knows a 128th.",
        source="https://github.com/pytorch/xla/pull/2425",
        through=LOOP,
    ),
    Planted(
        name="average-stands-still",
        healthy=LERP,
        planted="            slow.copy_((slow.bfloat16().lerp(fast.bfloat16(), 1 - KEEP)).float())  # culprit\n",
        precisions=BF16,
        part="weights",
        rules=("absorption", *DRIFTS),
        why="Two thousandths of what weights differ by is less than half of what bfloat16 knows of them.",
        source="https://github.com/facebookresearch/dinov2/pull/583",
        through=LOOP,
    ),
    Planted(
        name="moved-by-scaled-gradients",
        healthy=BACKWARD,
        planted="        scaler.scale(cost).backward()\n        torch.nn.utils.clip_grad_norm_(client.parameters(), 1.0)  # culprit\n"
        "        scaler.step(local)\n",
        precisions=HALF,
        part="function:trained",
        rules=("scaler-order",),
        why="Gradients are 65536 times as long when they are cut, so a client hardly moves.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/9599",
        through=LOOP,
    ),
    Planted(
        name="moves-of-low-weights",
        healthy=MOVED,
        planted="    pairs = zip(client.parameters(), server.parameters(), strict=True)\n"
        "    return [(new.bfloat16() - old.bfloat16()).float().detach() for new, old in pairs]  # culprit\n",
        precisions=BF16,
        part="function:trained",
        rules=DRIFTS,
        why="Weights of a fifth move by thousandths.",
        source="https://github.com/workofart/ml-by-hand/pull/85",
        through=LOOP,
    ),
]

HARMLESS = [
    Harmless(
        name="trust-low",
        healthy=TRUST,
        changed="    return (1 + ages.bfloat16()).rsqrt().float()\n",
        precisions=BF16,
        why="Ages are whole and small, and a weight is off by a 512th.",
    ),
    Harmless(
        name="rows-counted-wide",
        healthy=ROWS,
        changed="        model.rows += torch.tensor(rows.shape[1], dtype=torch.float16).long()\n",
        precisions=HALF,
        why="Forty-eight is a number of float16, and the sum is one of whole numbers.",
    ),
    Harmless(
        name="sent-in-half",
        healthy=EVERY,
        changed="    every = torch.stack([each.half() for each in sent]).float()\n"
        "    return every.var(0, correction=0).sum() / every.mean(0).square().sum()\n",
        precisions=HALF,
        why="Clients differ by as much as they move.",
    ),
]
