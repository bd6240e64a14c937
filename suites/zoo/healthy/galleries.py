"""Pictures: detection, segmentation, matching and light, with networks under autocast and all that cancels, sorts or adds up pixels in float32."""

from __future__ import annotations

import itertools

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import net
from healthy.guilds import trained, whole

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def layers(*channels: int) -> nn.Sequential:
    """Convolutions of three by three, with a ReLU between two."""
    made = [layer for wide, narrow in itertools.pairwise(channels) for layer in (nn.Conv2d(wide, narrow, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*made[:-1])


def corners(boxes: torch.Tensor) -> torch.Tensor:
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def enclosed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The overlap of boxes, less what their hull has beside them (GIoU)."""
    inside = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp_min(0).prod(-1)
    together = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inside
    hull = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).prod(-1)
    return inside / together - (hull - together) / hull


def boxes_by_bids() -> torch.Tensor:
    """Queries are matched to boxes by the least cost in float32, one after another; then L1 and GIoU losses in float32 of what half made."""
    goal = torch.cat([0.3 + 0.4 * uniform(4, 3, 2), 0.1 + 0.2 * uniform(4, 3, 2, seed=1)], -1)

    def loss(out: torch.Tensor) -> torch.Tensor:
        boxes = torch.sigmoid(out.float())
        cost = (boxes[:, :, None] - goal[:, None]).abs().sum(-1) - enclosed(corners(boxes)[:, :, None], corners(goal)[:, None])
        cost, rows = cost.detach().clone(), torch.arange(4)
        total = torch.zeros(())
        for box in range(3):
            query = cost[:, :, box].argmin(1)
            cost[rows, query] = torch.inf
            mine = boxes[rows, query]
            total = total + 5 * (mine - goal[:, box]).abs().mean() + (1 - enclosed(corners(mine), corners(goal[:, box]))).mean()
        return total

    return trained(net(12, 32, 4), (normal(4, 6, 12),), loss, "16-mixed")


def centres_of_things() -> torch.Tensor:
    """A focal loss of a heatmap: the sigmoid is float32 and cut off at 1e-4, which float32 holds beside one."""
    row = torch.arange(16.0)
    peak = torch.exp(-((row[:, None] - 5) ** 2 + (row - 9) ** 2) / 8)

    def loss(out: torch.Tensor) -> torch.Tensor:
        seen = torch.sigmoid(out.float()).clamp(1e-4, 1 - 1e-4)[:, 0]
        near = peak == 1
        good, bad = (1 - seen) ** 2 * seen.log() * near, (1 - peak) ** 4 * seen**2 * torch.log1p(-seen) * ~near
        return -(good.sum() + bad.sum()) / near.sum() / len(seen)

    return trained(layers(3, 8, 8, 1), (normal(4, 3, 16, 16),), loss, "16-mixed")


def masks_by_a_sorted_hinge() -> torch.Tensor:
    """The Lovász hinge: errors are sorted, and the growth of a Jaccard index is a difference of neighbours in float32."""
    truth = (normal(3, 144, seed=1) > 0.5).float()

    def loss(out: torch.Tensor) -> torch.Tensor:
        errors, order = (1 - out.flatten(1).float() * (2 * truth - 1)).sort(1, descending=True)
        sorted_truth = truth.gather(1, order)
        inside = truth.sum(1, keepdim=True) - sorted_truth.cumsum(1)
        jaccard = 1 - inside / (truth.sum(1, keepdim=True) + (1 - sorted_truth).cumsum(1))
        growth = torch.cat([jaccard[:, :1], jaccard[:, 1:] - jaccard[:, :-1]], 1)
        return (torch.relu(errors) * growth).sum(1).mean()

    return trained(layers(2, 8, 1), (normal(3, 2, 12, 12),), loss, "bf16-mixed")


def pictures_that_look_alike() -> torch.Tensor:
    """SSIM with local variances about local means, in float32: deviations are squared, not values."""
    goal = functional.avg_pool2d(uniform(3, 1, 20, 20, seed=2), 5, 1)

    def loss(out: torch.Tensor) -> torch.Tensor:
        patches, others = (functional.unfold(x.float(), 5).unflatten(1, (1, 25)) for x in (torch.sigmoid(out.float()), goal))
        mine, theirs = patches.mean(2, keepdim=True), others.mean(2, keepdim=True)
        both = ((patches - mine) * (others - theirs)).mean(2)
        spread = (patches - mine).square().mean(2) + (others - theirs).square().mean(2)
        light = (2 * mine * theirs + 1e-4) / (mine.square() + theirs.square() + 1e-4)
        return 1 - (light.squeeze(2) * (2 * both + 9e-4) / (spread + 9e-4)).mean()

    return trained(layers(2, 8, 1), (normal(3, 2, 16, 16),), loss, "bf16-mixed")


class Capsules(nn.Module):
    """Small capsules vote for large ones; three rounds of agreement in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.votes = net(20, 48), nn.Parameter(torch.zeros(8, 4, 6, 8))

    def squashed(self, x: torch.Tensor) -> torch.Tensor:
        length = x.square().sum(-1, keepdim=True)
        return length / (1 + length) * x / (length + 1e-8).sqrt()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.squashed(self.parts(x).float().unflatten(-1, (8, 6)))
        votes = torch.einsum("bif,iofd->biod", parts, self.votes).float()
        agreed = torch.zeros(votes.shape[:3])
        for _ in range(3):
            wholes = self.squashed((torch.softmax(agreed, 2)[..., None] * votes).sum(1))
            agreed = agreed + (votes * wholes[:, None]).sum(-1)
        return (wholes.square().sum(-1) + 1e-8).sqrt()


def capsules_that_agree() -> torch.Tensor:
    """Dynamic routing under autocast, with a margin loss."""
    kind = functional.one_hot(whole(4, 16, seed=4), 4)

    def loss(lengths: torch.Tensor) -> torch.Tensor:
        return (kind * torch.relu(0.9 - lengths) ** 2 + 0.5 * (1 - kind) * torch.relu(lengths - 0.1) ** 2).sum(1).mean()

    return trained(Capsules(), (normal(16, 20),), loss, "bf16-mixed")


def depth_by_matching() -> torch.Tensor:
    """A cost volume of eight disparities in half; their softmax and the mean disparity are float32."""
    left = functional.avg_pool2d(normal(2, 4, 14, 26), 3, 1)
    right = left.roll(-2, 3) + 0.05 * normal(2, 4, 12, 24, seed=1)

    class Stereo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = layers(4, 8, 8)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            mine, theirs = self.features(left), self.features(right)
            return torch.stack([(mine[..., 8:] * theirs[..., 8 - shift : 24 - shift]).mean(1) for shift in range(8)], 1)

    def loss(costs: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(5 * costs.float(), 1)
        return functional.smooth_l1_loss((shares * torch.arange(8.0)[:, None, None]).sum(1), torch.full((2, 12, 16), 2.0))

    return trained(Stereo(), (left, right), loss, "16-mixed")


IDIOMS = (
    boxes_by_bids, centres_of_things, masks_by_a_sorted_hinge, pictures_that_look_alike, capsules_that_agree, depth_by_matching,
)  # fmt: skip
