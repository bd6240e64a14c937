"""Pictures: detection, segmentation, matching and light, with networks under autocast and all that cancels, sorts or adds up pixels in float32."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import net
from healthy.guilds import trained, whole

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def layers(*channels: int) -> nn.Sequential:
    """Convolutions of three by three, with a ReLU between two."""
    made = [layer for wide, narrow in zip(channels[:-1], channels[1:], strict=True) for layer in (nn.Conv2d(wide, narrow, 3, padding=1), nn.ReLU())]
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


def boxes_that_fade() -> torch.Tensor:
    """Soft non-maximum suppression: boxes of a detector in half are widened first, and scores fade by a Gaussian of the overlap."""
    with torch.no_grad():
        boxes = corners(torch.sigmoid(net(8, 24, 4).to(HALF)(normal(30, 8).to(HALF)).float()) * torch.tensor([320.0, 320, 160, 160]))
    scores, kept = uniform(30, seed=1), []
    for _ in range(8):
        best = scores.argmax()
        kept.append(torch.cat([boxes[best], scores[best][None]]))
        inside = (torch.min(boxes[:, 2:], boxes[best, 2:]) - torch.max(boxes[:, :2], boxes[best, :2])).clamp_min(0).prod(-1)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        scores = scores * torch.exp(-((inside / (areas + areas[best] - inside)) ** 2) / 0.5)
        scores[best] = 0
    return torch.stack(kept)


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


def masks_by_their_overlap() -> torch.Tensor:
    """Dice and Tversky losses, whose sums over pixels are float32, and have a one in both halves."""
    truth = (normal(4, 1, 16, 16, seed=1) > 0.8).float()

    def loss(out: torch.Tensor) -> torch.Tensor:
        seen = torch.sigmoid(out.float())
        both, mine, theirs = (seen * truth).sum((1, 2, 3)), (seen * (1 - truth)).sum((1, 2, 3)), ((1 - seen) * truth).sum((1, 2, 3))
        dice = (2 * both + 1) / (2 * both + mine + theirs + 1)
        return 2 - dice.mean() - ((both + 1) / (both + 0.3 * mine + 0.7 * theirs + 1)).pow(0.75).mean()

    return trained(layers(3, 8, 8, 1), (normal(4, 3, 16, 16),), loss, "bf16-mixed")


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


class Straightened(nn.Module):
    """A small network says how a picture lies; the grid and the samples are float32."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.head = net(64, 16, 6), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lies = self.look(x.flatten(1)).unflatten(1, (2, 3))
        with torch.autocast("cpu", enabled=False):
            lies = torch.eye(2, 3) + 0.1 * lies.float()
            straight = functional.grid_sample(x.float(), functional.affine_grid(lies, list(x.shape), align_corners=False), align_corners=False)
        return self.head(straight.flatten(1))


def digits_set_straight() -> torch.Tensor:
    """A spatial transformer whose grid is float32."""
    kind, smooth = whole(4, 12, seed=3), functional.avg_pool2d(normal(12, 1, 12, 12), 5, 1)
    return trained(Straightened(), (smooth,), lambda out: functional.cross_entropy(out.float(), kind), "bf16-mixed")


def flow_between_frames() -> torch.Tensor:
    """A photometric loss: the flow of a network in half is added to whole places in float32, and differences get a Charbonnier norm."""
    first = functional.avg_pool2d(uniform(2, 1, 20, 20), 5, 1)
    second = first.roll(1, 3)
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")

    def loss(out: torch.Tensor) -> torch.Tensor:
        flow = 2 * torch.tanh(out.float())
        grid = torch.stack([(columns + flow[:, 0]) / 7.5 - 1, (rows + flow[:, 1]) / 7.5 - 1], -1)
        away = functional.grid_sample(second, grid, align_corners=True, padding_mode="border") - first
        smooth = (flow[..., 1:] - flow[..., :-1]).abs().mean() + (flow[..., 1:, :] - flow[..., :-1, :]).abs().mean()
        return (away.square() + 1e-6).sqrt().mean() + 0.05 * smooth

    return trained(layers(2, 8, 2), (torch.cat([first, second], 1),), loss, "16-mixed")


def pixels_in_soft_clusters() -> torch.Tensor:
    """Soft k-means of pixels by colour and place in float32, with centres as weighted means."""
    place = torch.stack(torch.meshgrid(torch.linspace(0, 1, 12), torch.linspace(0, 1, 12), indexing="ij"), -1).reshape(-1, 2)
    pixels = torch.cat([uniform(144, 3), 0.5 * place], 1)
    centres = pixels[::18].clone()
    for _ in range(8):
        shares = torch.softmax(-20 * (pixels[:, None] - centres).square().sum(-1), 1)
        centres = (shares.T @ pixels) / shares.sum(0)[:, None]
    return centres


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


def style_by_products_of_channels() -> torch.Tensor:
    """Gram matrices over the number of pixels, in float32, of features in bfloat16; weights have float32 masters."""
    goal = normal(3, 8, 144, seed=3)
    wanted = goal @ goal.mT / 144

    def loss(out: torch.Tensor) -> torch.Tensor:
        flat = out.flatten(2).float()
        return (flat @ flat.mT / flat.shape[2] - wanted).square().mean()

    return trained(layers(3, 8, 8), (normal(3, 3, 12, 12),), loss, "bf16-master")


IDIOMS = (
    boxes_by_bids, boxes_that_fade, centres_of_things, masks_by_their_overlap, masks_by_a_sorted_hinge, pictures_that_look_alike,
    digits_set_straight, flow_between_frames, pixels_in_soft_clusters, capsules_that_agree, depth_by_matching, style_by_products_of_channels,
)  # fmt: skip
EXACT = ("pixels_in_soft_clusters",)
