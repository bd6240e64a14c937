"""A detector of words and of whole lines in scanned text, 64 by 1536 pixels: anchors, focal loss, generalised IoU and centerness."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, CLASSES, ROWS, COLUMNS = 24, 4, 64, 1536
ANCHORS = ((4, (24.0, 24.0)), (8, (1200.0, 56.0)))  # the stride of each feature map, and the sides of its anchors
STEPS = 1
optimizer = None


def grid(rows: int, columns: int, stride: int, like: torch.Tensor) -> torch.Tensor:
    """The middle of every cell of a feature map, in pixels of the image: x and y."""
    y = torch.arange(stride // 2, rows, stride, device=like.device).float()
    x = torch.arange(stride // 2, columns, stride, device=like.device).float()
    y, x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([x, y], dim=-1).flatten(0, 1)


def decoded(centers: torch.Tensor, sides: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
    """Boxes as corners: the anchors' centers moved by a share of their sides, and the sides stretched."""
    deltas = deltas.float()
    middle = centers + deltas[..., :2] * sides
    half = 0.5 * sides * torch.exp(deltas[..., 2:].clamp(max=4.1))
    return torch.cat([middle - half, middle + half], dim=-1)


def areas(boxes: torch.Tensor) -> torch.Tensor:
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def overlaps(boxes: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """The IoU of every anchor with every true box."""
    boxes, truth = boxes.float()[:, None], truth.float()[None]
    shared = areas(torch.cat([torch.maximum(boxes[..., :2], truth[..., :2]), torch.minimum(boxes[..., 2:], truth[..., 2:])], dim=-1))
    return shared / (areas(boxes) + areas(truth) - shared)


def generalised(boxes: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """The generalised IoU of each box with its own true box."""
    boxes, truth = boxes.float(), truth.float()
    shared = areas(torch.cat([torch.maximum(boxes[..., :2], truth[..., :2]), torch.minimum(boxes[..., 2:], truth[..., 2:])], dim=-1))
    around = areas(torch.cat([torch.minimum(boxes[..., :2], truth[..., :2]), torch.maximum(boxes[..., 2:], truth[..., 2:])], dim=-1))
    union = areas(boxes) + areas(truth) - shared
    return shared / (union + 1e-7) - (around - union) / (around + 1e-7)


def distances(centers: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """How far the true box's left, top, right and bottom are from the center of its anchor."""
    centers, truth = centers.float(), truth.float()
    return torch.cat([centers - truth[..., :2], truth[..., 2:] - centers], dim=-1)


def centerness(sides: torch.Tensor) -> torch.Tensor:
    """1 in the middle of a box, 0 on its border."""
    across, along = sides[..., ::2].clamp(min=0.5), sides[..., 1::2].clamp(min=0.5)
    return ((across.amin(-1) / across.amax(-1)) * (along.amin(-1) / along.amax(-1))).sqrt()


def focal(scores: torch.Tensor, target: torch.Tensor, alpha: float = 0.25, gamma: float = 2.0) -> torch.Tensor:
    """The focal loss of every class of every anchor."""
    scores = scores.float()
    probability = torch.sigmoid(scores)
    positive = -alpha * (1 - probability) ** gamma * F.logsigmoid(scores)
    negative = -(1 - alpha) * probability**gamma * F.logsigmoid(-scores)
    return torch.where(target, positive, negative)


def summed(losses: torch.Tensor) -> torch.Tensor:
    """The sum over all anchors."""
    return losses.float().sum()


class Head(nn.Module):
    """The scores of the classes, the deltas of the box and the centerness of every anchor of a feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.GroupNorm(4, WIDTH), nn.ReLU())
        self.classes, self.boxes, self.center = (nn.Conv2d(WIDTH, outputs, 3, padding=1) for outputs in (CLASSES, 4, 1))
        nn.init.constant_(self.classes.bias, -4.6)  # a probability of 0.01, as RetinaNet starts from
        nn.init.normal_(self.classes.weight, std=0.4)  # and scores that are spread as those of a trained head

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.shared(x)
        scores, deltas, center = (layer(x).flatten(2).transpose(1, 2) for layer in (self.classes, self.boxes, self.center))
        return scores, deltas, center[..., 0]


class Detector(nn.Module):
    """Returns the losses of the classes, of the boxes and of the centerness."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), nn.GroupNorm(4, WIDTH), nn.ReLU())
        self.down, self.head = nn.Conv2d(WIDTH, WIDTH, 2, stride=2), Head()

    def anchors(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        centers = [grid(ROWS, COLUMNS, stride, like) for stride, _ in ANCHORS]
        sides = [torch.tensor(side, device=like.device).expand_as(each) for each, (_, side) in zip(centers, ANCHORS, strict=True)]
        return torch.cat(centers), torch.cat(sides)

    def forward(self, features: torch.Tensor, truth: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        fine = self.stem(features)
        heads = [self.head(each) for each in (fine, self.down(fine))]
        scores, deltas, center = (torch.cat(parts, dim=1)[0] for parts in zip(*heads, strict=True))
        centers, sides = self.anchors(scores)
        anchors = torch.cat([centers - sides / 2, centers + sides / 2], dim=-1)
        best, match = overlaps(anchors, truth).max(-1)
        chosen = best > 0.3
        target = F.one_hot(labels[match], CLASSES).bool() & chosen[:, None]
        count = chosen.sum().clamp(min=1)
        own = truth[match[chosen]]
        boxes = decoded(centers[chosen], sides[chosen], deltas[chosen])
        middle = centerness(distances(centers[chosen], own))
        return torch.stack(
            [
                summed(focal(scores, target).sum(-1)) / count,
                summed(1 - generalised(boxes, own)) / count,
                F.binary_cross_entropy_with_logits(center[chosen].float(), middle.float()),
            ]
        )


def make() -> nn.Module:
    torch.manual_seed(0)
    return Detector()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of an image, and its boxes in whole pixels."""
    g = torch.Generator().manual_seed(1)
    features = torch.randn(1, 3, ROWS // 4, COLUMNS // 4, generator=g)
    words = [[13, 21, 41, 43], [427, 17, 455, 39], [613, 25, 635, 51], [1017, 19, 1043, 45], [1285, 11, 1309, 33], [1471, 23, 1499, 47]]
    return features, torch.tensor([*words, [67, 7, 1459, 61]]), torch.tensor([0, 1, 2, 0, 1, 2, 3])


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.sum()
