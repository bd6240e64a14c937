"""A neural cellular automaton that grows a picture: fixed Sobel filters as buffers, cells that are updated by chance, cells that die."""

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 1


class CAModel(nn.Module):
    def __init__(self, channels=12, hidden=48, fire_rate=0.5):
        super().__init__()
        self.channels, self.fire_rate = channels, fire_rate
        sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
        identity = torch.zeros(3, 3)
        identity[1, 1] = 1.0
        kernel = torch.stack([identity, sobel, sobel.T]).repeat(channels, 1, 1)[:, None]
        self.register_buffer("kernel", kernel)
        self.w1, self.w2 = nn.Conv2d(3 * channels, hidden, 1), nn.Conv2d(hidden, channels, 1, bias=False)
        nn.init.normal_(self.w2.weight, std=0.05)

    def perceive(self, x):
        return F.conv2d(x, self.kernel, padding=1, groups=self.channels)

    @staticmethod
    def alive(x):
        return F.max_pool2d(x[:, 3:4], kernel_size=3, stride=1, padding=1) > 0.1

    def update(self, x, fire):
        before = self.alive(x)
        dx = self.w2(F.relu(self.w1(self.perceive(x))))
        x = x + dx * fire
        return x * (before & self.alive(x)).to(x.dtype)

    def forward(self, seed, target, fires):
        x, path = seed, []
        for fire in fires:
            x = self.update(x, fire)
            path.append(x[:, 3].mean((1, 2)))
        rgba = x[:, :4]
        overflow = (x - x.clamp(-1.0, 1.0)).abs().mean()
        loss = F.mse_loss(rgba.float(), target.float()) + 0.1 * overflow
        return {"loss": loss, "picture": rgba, "path": torch.stack(path, -1)}


def make():
    torch.manual_seed(0)
    return CAModel()


def batch():
    g = torch.Generator().manual_seed(17)
    seed = torch.zeros(2, 12, 16, 16)
    seed[:, 3:, 5:11, 5:11] = 1.0
    ys, xs = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    disc = (((ys - 8) ** 2 + (xs - 8) ** 2) < 25).float()
    target = torch.stack([disc * 0.8, disc * 0.2, disc * 0.5, disc]).expand(2, -1, -1, -1).contiguous()
    return {"seed": seed, "target": target, "fires": (torch.rand(10, 2, 1, 16, 16, generator=g) < 0.5).float()}


def loss(output):
    return output["loss"]


optimizer = None
