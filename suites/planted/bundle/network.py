"""Bundle adjustment inside a network, after DROID-SLAM: a network weighs what is seen again, poses and depths by Gauss-Newton."""

import torch
import torch.nn.functional as F
from torch import nn

FRAMES, POINTS, DIM = 4, 40, 32
FOCAL, WIDTH, HEIGHT = 980.0, 1280.0, 960.0
STEPS = 1


def rays(tenths, low):
    """Directions through pixels: [N, 2]. tenths: whole tenths of a pixel."""
    pixels = tenths.float() / 10
    return (pixels - torch.tensor([WIDTH / 2, HEIGHT / 2])) / FOCAL


def rotations(turn, low):
    """Rodrigues' formula: [F, 3, 3]."""
    angle = turn.square().sum(-1).add(1e-12).sqrt()[:, None, None]
    x, y, z = turn.unbind(-1)
    zero = torch.zeros_like(x)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).view(-1, 3, 3)
    return torch.eye(3) + angle.sin() / angle * skew + half_turns(angle, low) * (skew @ skew)


def half_turns(angle, low):
    """(1 - cos a) / a², by the sine of half the angle."""
    return 0.5 * ((angle / 2).sin() / (angle / 2)).square()


def seen_from(turn, shift, direction, inverse, low):
    """The points of the first frame in the frame of each other camera: [F, N, 3], times their inverse depths."""
    ahead = torch.cat([direction, torch.ones_like(direction[:, :1])], -1)
    return torch.einsum("fij,nj->fni", rotations(turn, low), ahead) + shift[:, None] * inverse[:, None]


def projected(points, low):
    """Pixels of points: [F, N, 2]."""
    return FOCAL * points[..., :2] / points[..., 2:] + torch.tensor([WIDTH / 2, HEIGHT / 2])


def residuals(tenths, pixels, low):
    """By how many pixels a point is seen beside where it ought to be."""
    return tenths.float() / 10 - pixels


def slopes(points, inverse, shift, low):
    """Of the pixels: by the pose [F, N, 2, 6] and by the inverse depth [F, N, 2]."""
    x, y, z = points.unbind(-1)
    zero = torch.zeros_like(x)
    of_point = FOCAL * torch.stack([1 / z, zero, -x / z**2, zero, 1 / z, -y / z**2], -1).unflatten(-1, (2, 3))
    cross = torch.stack([zero, z, -y, -z, zero, x, y, -x, zero], -1).unflatten(-1, (3, 3))
    of_shift = inverse[:, None, None] * torch.eye(3)
    by_pose = of_point @ torch.cat([of_shift.expand_as(cross), cross], -1)
    return by_pose, (of_point @ shift[:, None, :, None].expand(-1, POINTS, -1, -1))[..., 0]


def normal(by_pose, by_depth, weight, beside, low):
    """The blocks of the normal equations: poses, both, depths, and their right sides."""
    weighed = by_pose * weight[..., None]
    poses = torch.einsum("fnai,fnaj->fij", weighed, by_pose)
    both = torch.einsum("fnai,fna->fin", weighed, by_depth)
    depths = (weight * by_depth.square()).sum((0, 2)) + 1.0
    return poses, both, depths, torch.einsum("fnai,fna->fi", weighed, beside), (weight * by_depth * beside).sum((0, 2))


def damped(poses, low):
    """Levenberg's and Marquardt's: a little more on the diagonal."""
    return poses + torch.diag_embed(1e-4 * poses.diagonal(dim1=-2, dim2=-1) + 0.1)


def schur(poses, both, depths, low):
    """What is left of the poses' block when the depths have been put in: [F * 6, F * 6]."""
    whole = torch.block_diag(*poses)
    flat = both.flatten(0, 1)
    return whole - (flat / depths) @ flat.T


def epipolar(first, second, turn, shift, low):
    """How far a pixel is beside the line on which it must be: x' E x, in thousandths."""
    x, y, z = shift.unbind(-1)
    zero = torch.zeros_like(x)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).view(-1, 3, 3)
    essential = skew @ rotations(turn, low)
    one = torch.ones_like(first[..., :1])
    left, right = torch.cat([first, one], -1), torch.cat([second, one.expand(second.shape[0], -1, -1)], -1)
    return 1000 * torch.einsum("fni,fij,nj->fn", right, essential, left)


class Bundle(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, DIM, 3, stride=2))
        self.gru, self.weigh, self.revise = nn.GRUCell(2 * DIM + 3, DIM), nn.Linear(DIM, 2), nn.Linear(DIM, 2)

    def forward(self, patches, again, tenths, seen, depth, turns, shifts, truth):
        features = self.patch(patches.to(self.weigh.weight.dtype) / 255).mean((-1, -2))
        other = self.patch(again.flatten(0, 1).to(self.weigh.weight.dtype) / 255).mean((-1, -2)).unflatten(0, (FRAMES, POINTS))
        low = features.dtype
        with torch.autocast("cpu", enabled=False):
            direction, inverse = rays(tenths, low), 1000 / depth.float()
            turn, shift = turns.float() / 1e6, shifts.float() / 1000
            points = seen_from(turn, shift, direction, inverse, low)
            beside = residuals(seen, projected(points, low), low)
            line = epipolar(direction, rays(seen, low), turn, shift, low)
        facts = torch.cat([features.expand(FRAMES, -1, -1), other, beside.to(low) / 8, line[..., None].to(low) / 8], -1)
        hidden = self.gru(facts.flatten(0, 1)).unflatten(0, (FRAMES, POINTS))
        weight, revised = self.weigh(hidden).float().sigmoid(), self.revise(hidden).float()
        with torch.autocast("cpu", enabled=False):
            by_pose, by_depth = slopes(points, inverse, shift, low)
            blocks = normal(by_pose, by_depth, weight, beside + revised, low)
            left = schur(damped(blocks[0], low), blocks[1], blocks[2], low)
            right = blocks[3].flatten() - blocks[1].flatten(0, 1) @ (blocks[4] / blocks[2])
            step = torch.linalg.solve(left, right).view(FRAMES, 6)
            moved = projected(seen_from(turn + step[:, 3:], shift + step[:, :3], direction, inverse, low), low)
            off = F.huber_loss(moved, seen.float() / 10) + 100 * (shift + step[:, :3] - truth.float() / 1000).square().mean()
        return {"step": step, "weight": weight, "loss": off}


def make():
    torch.manual_seed(0)
    return Bundle()


def batch():
    generator = torch.Generator().manual_seed(40)
    tenths = (torch.rand(POINTS, 2, generator=generator) * torch.tensor([12_000, 9_000]) + 300).long()
    depth = torch.randint(2_000, 9_000, (POINTS,), generator=generator)
    turns = torch.randint(-60_000, 60_000, (FRAMES, 3), generator=generator)
    truth = torch.randint(-300, 300, (FRAMES, 3), generator=generator)
    points = seen_from(turns.float() / 1e6, truth.float() / 1000, rays(tenths, None), 1000 / depth.float(), None)
    noise = torch.randn(FRAMES, POINTS, 2, generator=generator) * 0.6
    return {
        "patches": torch.randint(256, (POINTS, 3, 6, 6), generator=generator),
        "again": torch.randint(256, (FRAMES, POINTS, 3, 6, 6), generator=generator),
        "tenths": tenths,
        "seen": ((projected(points, None) + noise) * 10).round().long(),
        "depth": depth,
        "turns": turns + torch.randint(-3_000, 3_000, (FRAMES, 3), generator=generator),
        "shifts": truth + torch.randint(-12, 12, (FRAMES, 3), generator=generator),
        "truth": truth,
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
