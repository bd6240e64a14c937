"""Boxes from queries, as DETR finds them: places of pixels from a mask, noised boxes as queries, refined by an inverse sigmoid, a focal loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
IMAGES, HIGH, WIDE, STRIDE, WIDTH, HEADS, QUERIES, KINDS, LAYERS = 2, 12, 48, 8, 64, 4, 24, 8, 2
HALF = WIDTH // 2
CELL = 27.75
TALLEST, WIDEST = CELL * HIGH, CELL * WIDE


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def frequencies(low: torch.dtype) -> torch.Tensor:
    share = torch.arange(HALF // 2).float() / (HALF // 2)
    return 10000.0**-share


def pixels(mask: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of what is no padding, in pixels of the picture before it was made smaller."""
    inside = mask.float() * CELL
    return inside.cumsum(1) - CELL / 2, inside.cumsum(2) - CELL / 2


def waves(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    angles = places.unsqueeze(-1) * frequencies(low)
    return torch.cat([angles.sin(), angles.cos()], -1)


def inverse_sigmoid(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    x = x.float().clamp(1e-5, 1 - 1e-5)
    return torch.log(x / (1 - x))


def corners(boxes: torch.Tensor) -> torch.Tensor:
    """Left, top, right, bottom, in pixels."""
    centre, size = boxes[..., :2], boxes[..., 2:].clamp_min(1e-3)
    return torch.cat([centre - size / 2, centre + size / 2], -1) * torch.tensor([WIDEST, TALLEST, WIDEST, TALLEST])


def area(corner: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    size = (corner[..., 2:] - corner[..., :2]).clamp_min(0)
    return size[..., 0] * size[..., 1]


def overlap(one: torch.Tensor, other: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The generalised overlap of boxes."""
    one, other = corners(one), corners(other)
    both = torch.cat([torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])], -1)
    hull = torch.cat([torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:])], -1)
    shared, whole = area(both, low), area(hull, low)
    union = area(one, low) + area(other, low) - shared
    return shared / union - (whole - union) / whole


def sampled(features: torch.Tensor, points: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The features at the middle of each box."""
    grid = 2 * points - 1
    return functional.grid_sample(features.float(), grid.unsqueeze(1), align_corners=False).squeeze(2).transpose(1, 2)


def focal(logits: torch.Tensor, target: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    logits = logits.float()
    chance = torch.sigmoid(logits)
    no, yes = -functional.logsigmoid(-logits), -functional.logsigmoid(logits)
    return target * 0.25 * (1 - chance).square() * yes + (1 - target) * 0.75 * chance.square() * no


class Layer(nn.Module):
    """A query looks at itself, at the image, and at its own place in it."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.cross = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.point, self.norms = nn.Linear(WIDTH, WIDTH), nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.wide, self.back, self.box = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, places: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](x + self.own(x, x, x, need_weights=False)[0])
        x = self.norms[1](x + self.cross(x, memory + places, memory, need_weights=False)[0] + self.point(here))
        return self.norms[2](x + self.back(functional.relu(self.wide(x))))


class QueryBoxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, STRIDE, STRIDE)
        self.mix = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.label, self.start = nn.Embedding(KINDS, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.layers, self.kind = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, KINDS)
        nn.init.constant_(self.kind.bias, -4.6)

    def forward(
        self, image: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor, boxes: torch.Tensor, noised: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        weight = self.stem.weight
        low = low_dtype(weight)
        features = functional.relu(self.mix(functional.relu(self.stem(image))))
        with torch.autocast(image.device.type, enabled=False):
            rows, columns = pixels(mask, low)
            places = torch.cat([waves(rows, low), waves(columns, low)], -1).flatten(1, 2).to(weight.dtype)
            reference = noised.float()
            asked = torch.cat([waves(reference[..., each] * WIDEST, low) for each in range(4)], -1).to(weight.dtype)
        memory = features.flatten(2).transpose(1, 2)
        x = self.start(asked) + self.label(labels)
        for layer in self.layers:
            with torch.autocast(image.device.type, enabled=False):
                here = sampled(features, reference[..., :2], low).to(weight.dtype)
            x = layer(x, memory, places, here)
            change = layer.box(x)
            with torch.autocast(image.device.type, enabled=False):
                reference = torch.sigmoid(inverse_sigmoid(reference, low) + 0.1 * change.float())
        logits = self.kind(x)
        with torch.autocast(image.device.type, enabled=False):
            target = functional.one_hot(labels, KINDS).float()
            kinds = focal(logits, target, low)
            cost = 1 - overlap(reference.unsqueeze(2), boxes.float().unsqueeze(1), low)
            own = cost.diagonal(dim1=1, dim2=2)
        return {"loss": kinds.sum(-1).mean() + own.mean(), "boxes": reference, "logits": logits, "cost": cost}


def make() -> nn.Module:
    torch.manual_seed(0)
    return QueryBoxes()


def batch() -> dict[str, torch.Tensor]:
    """Boxes as shares of the image, some at its edge; the second image is narrower."""
    generator = torch.Generator().manual_seed(5)
    size = 0.04 + 0.3 * torch.rand(IMAGES, QUERIES, 2, generator=generator)
    centre = torch.sigmoid(3 * torch.randn(IMAGES, QUERIES, 2, generator=generator))
    boxes = torch.cat([centre, size], -1)
    mask = torch.ones(IMAGES, HIGH, WIDE, dtype=torch.bool)
    mask[1, :, 40:] = False
    return {
        "image": torch.randn(IMAGES, 3, HIGH * STRIDE, WIDE * STRIDE, generator=generator),
        "mask": mask,
        "labels": torch.randint(0, KINDS, (IMAGES, QUERIES), generator=generator),
        "boxes": boxes,
        "noised": (boxes * (1 + 0.1 * torch.randn(IMAGES, QUERIES, 4, generator=generator))).clamp(0.002, 0.998),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
