"""Bugs planted into the detection head."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="anchor-grid-low",
        healthy="    x = torch.arange(stride // 2, columns, stride, device=like.device).float()\n",
        planted="    x = torch.arange(stride // 2, columns, stride, device=like.device).to(like.dtype)  # culprit\n",
        more=(
            (
                "    y = torch.arange(stride // 2, rows, stride, device=like.device).float()\n",
                "    y = torch.arange(stride // 2, rows, stride, device=like.device).to(like.dtype)\n",
            ),
        ),
        precisions=BF16,
        part="function:centerness",
        rules=("integer-rounding", "amplified-rounding"),
        why="Centers in pixels are stored as the features are, and bfloat16 steps by 4 above 512 and by 8 above 1024: anchors lie "
        "beside their cells.",
        source="https://github.com/zhiqwang/yolort/pull/111",
    ),
    Planted(
        name="overlap-low",
        healthy="    boxes, truth = boxes.float()[:, None], truth.float()[None]\n",
        planted="    boxes, truth = boxes.to(low)[:, None], truth.to(low)[None]  # culprit\n",
        precisions=LOW,
        part="function:overlaps",
        rules=("overflow", "nan", "cancellation", "amplified-rounding", "integer-rounding"),
        why="The area of a line, 1200 by 56 pixels, is beyond float16, and Inf - Inf is NaN; bfloat16 rounds corners to multiples of "
        "8 pixels, a third of a word.",
        source="https://github.com/pytorch/vision/pull/3383",
        more=(
            ("def overlaps(boxes: torch.Tensor, truth: torch.Tensor)", "def overlaps(boxes: torch.Tensor, truth: torch.Tensor, low: torch.dtype)"),
            ("        best, match = overlaps(anchors, truth).max(-1)\n", "        best, match = overlaps(anchors, truth, scores.dtype).max(-1)\n"),
            (
                "    return shared / (areas(boxes) + areas(truth) - shared)\n",
                "    return shared / (areas(boxes) + areas(truth) - shared)  # culprit\n",
            ),
            ("    return sides[..., 0] * sides[..., 1]\n", "    return sides[..., 0] * sides[..., 1]  # culprit\n"),
        ),
    ),
    Planted(
        name="generalised-overlap-low",
        healthy="    boxes, truth = boxes.float(), truth.float()\n    shared",
        planted="    boxes, truth = boxes.to(low), truth.to(low)  # culprit\n    shared",
        precisions=LOW,
        part="function:generalised",
        rules=("overflow", "nan", "cancellation", "amplified-rounding", "integer-rounding"),
        why="The loss of the boxes computes areas low: float16 overflows above 65504 square pixels, and in bfloat16 small boxes are "
        "off by several pixels.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
        more=(
            (
                "def generalised(boxes: torch.Tensor, truth: torch.Tensor)",
                "def generalised(boxes: torch.Tensor, truth: torch.Tensor, low: torch.dtype)",
            ),
            (
                "                summed(1 - generalised(boxes, own)) / count,\n",
                "                summed(1 - generalised(boxes, own, scores.dtype)) / count,\n",
            ),
            ("    return sides[..., 0] * sides[..., 1]\n", "    return sides[..., 0] * sides[..., 1]  # culprit\n"),
        ),
    ),
    Planted(
        name="focal-clamp-low",
        healthy="    probability = torch.sigmoid(scores)\n",
        planted="    probability = torch.sigmoid(scores).to(low).clamp(1e-4, 1 - 1e-4)  # culprit\n",
        precisions=LOW,
        part="function:focal",
        rules=("vanished-constant", "overflow", "nan", "amplified-rounding", "cancellation"),
        why="1 - 1e-4 is 1 in the low formats, so the clamp does nothing at the top: a confident score has a probability of 1 and "
        "log(1 - p) is infinite.",
        source="https://github.com/zylo117/Yet-Another-EfficientDet-Pytorch/issues/502",
        more=(
            ("    scores = scores.float()\n", "    low, scores = scores.dtype, scores.float()\n"),
            ("gamma * F.logsigmoid(scores)\n", "gamma * torch.log(probability)\n"),
            ("gamma * F.logsigmoid(-scores)\n", "gamma * torch.log(1 - probability)  # culprit\n"),
            ("    return torch.where(target, positive, negative)\n", "    return torch.where(target, positive, negative).float()\n"),
        ),
    ),
    Planted(
        name="centerness-from-rounded-pixels",
        healthy="    centers, truth = centers.float(), truth.float()\n",
        planted="    centers, truth = centers.to(low), truth.to(low)  # culprit\n",
        precisions=BF16,
        part="function:centerness",
        rules=("cancellation", "integer-rounding", "amplified-rounding"),
        why="A distance of some pixels is the difference of two coordinates above 1024, which bfloat16 has rounded to multiples of 8.",
        source="https://github.com/kornia/kornia/pull/4336",
        more=(
            (
                "def distances(centers: torch.Tensor, truth: torch.Tensor)",
                "def distances(centers: torch.Tensor, truth: torch.Tensor, low: torch.dtype)",
            ),
            (
                "        middle = centerness(distances(centers[chosen], own))\n",
                "        middle = centerness(distances(centers[chosen], own, scores.dtype).float())\n",
            ),
        ),
    ),
    Planted(
        name="loss-summed-low",
        healthy="    return losses.float().sum()\n",
        planted="""    pieces = F.pad(losses.to(low), (0, -len(losses) % 8)).view(-1, 8)
    total = torch.zeros_like(pieces[0])
    for piece in pieces:
        total = total + piece  # culprit
    return total.float().sum()
""",
        precisions=BF16,
        part="function:summed",
        rules=("absorption", "local-drift"),
        why="The losses of 7680 anchors are added up in a low running sum, eight at a time,, which the many small ones no longer change.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
        more=(
            ("def summed(losses: torch.Tensor)", "def summed(losses: torch.Tensor, low: torch.dtype)"),
            (
                "                summed(focal(scores, target).sum(-1)) / count,\n",
                "                summed(focal(scores, target).sum(-1), scores.dtype) / count,\n",
            ),
            (
                "                summed(1 - generalised(boxes, own)) / count,\n",
                "                summed(1 - generalised(boxes, own), scores.dtype) / count,\n",
            ),
        ),
    ),
]
