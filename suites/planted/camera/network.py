"""A raw picture becomes one to look at: black level, exposures, lens shading, a small network that denoises, and SSIM as the loss."""

import torch
import torch.nn.functional as F
from torch import nn

PICTURES, SIZE, DIM = 3, 48, 16
LEFT, TOP, REACH = 2912, 1840, 2600
BLACK = 2048
STEPS = 1


def without_black(raw, dtype):
    """Counts above the black level: [B, 4, H, W], one channel for each place of the Bayer pattern."""
    return F.pixel_unshuffle((raw - BLACK).float()[:, None], 2)


def merged(long, short, exposures, dtype):
    """Light from two exposures: the long one, and the short one where the long one is full."""
    ratio = (exposures[:, 0].float() / exposures[:, 1].float()).view(-1, 1, 1, 1)
    return torch.where(long < 12_000, long, short * ratio)


def shading(dtype):
    """How much the lens takes from each pixel of this part of the sensor, whose middle is at the origin."""
    across = torch.arange(LEFT, LEFT + SIZE, 2)
    down = torch.arange(TOP, TOP + SIZE, 2)
    square = (across[None] ** 2 + down[:, None] ** 2).float()
    return 1 + 0.4 * square / REACH**2


def vignette(dtype):
    """From the edge of the crop to its middle, in steps of a pixel."""
    place = torch.arange(SIZE // 2).float()
    return (place[None] - 11.5).square() + (place[:, None] - 11.5).square()


def stabilised(light, dtype):
    """Anscombe's root, after which noise is the same in dark and bright parts."""
    return 2 * (light.clamp_min(0) + 0.375).sqrt()


def exponent(stops, dtype):
    """Stops of exposure, as gains."""
    return torch.exp2(stops.float() / 256)


def local(picture, width=7):
    """Means over windows."""
    channels = picture.shape[1]
    window = torch.full((channels, 1, width, width), 1 / width**2, dtype=picture.dtype)
    return F.conv2d(picture, window, groups=channels)


def ssim(one, other, dtype):
    """Structural similarity, as torchmetrics has it."""
    with torch.autocast("cpu", enabled=False):
        one, other = one.float(), other.float()
        mean, aim = local(one), local(other)
        spread = local(one * one) - mean * mean
        wanted = local(other * other) - aim * aim
        both = local(one * other) - mean * aim
    like = (2 * mean * aim + 1e-4) * (2 * both + 9e-4)
    return like / ((mean.square() + aim.square() + 1e-4) * (spread + wanted + 9e-4))


def toned(light, dtype):
    """For a screen."""
    return light.clamp_min(1e-5) ** (1 / 2.2)


class Camera(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(6, DIM, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(DIM, DIM, 3, padding=1) for _ in range(3))
        self.last = nn.Conv2d(DIM, 4, 3, padding=1)
        self.mix = nn.Linear(4, 3)

    def forward(self, long, short, exposures, stops, aim):
        weight = self.first.weight.dtype
        dtype = self.mix(torch.zeros(1, 4, dtype=weight)).dtype
        with torch.autocast("cpu", enabled=False):
            light = merged(without_black(long, dtype), without_black(short, dtype), exposures, dtype)
            gain = shading(dtype) * exponent(stops, dtype).view(-1, 1, 1, 1)
            root = stabilised(light, dtype) / 16
            edge = (vignette(dtype) / 256).expand(len(light), 1, -1, -1)
            stop = (stops.float() / 512).view(-1, 1, 1, 1).expand_as(edge)
        hidden = F.gelu(self.first(torch.cat([root, edge, stop], 1).to(weight)))
        for layer in self.body:
            hidden = hidden + F.gelu(layer(hidden))
        clean = root + 0.1 * self.last(hidden).float()
        shown = self.mix((clean.square() * gain / 4).movedim(1, -1).to(weight)).movedim(-1, 1).float().sigmoid()
        shown = toned(shown, dtype)
        wanted = aim.float() / 65_535
        close = ssim(shown, wanted, dtype)
        return {"shown": shown, "loss": 1 - close.float().mean() + F.l1_loss(shown, wanted)}


def make():
    torch.manual_seed(0)
    return Camera()


def batch():
    generator = torch.Generator().manual_seed(23)
    smooth = torch.rand(PICTURES, 1, 5, 5, generator=generator)
    scene = F.interpolate(smooth, size=(SIZE, SIZE), mode="bicubic", align_corners=True)[:, 0].clamp_min(0.02) * 80
    noise = torch.randn(PICTURES, SIZE, SIZE, generator=generator)
    wanted = 0.72 + 0.02 * F.interpolate(torch.rand(PICTURES, 3, 9, 9, generator=generator), size=SIZE // 2, mode="bilinear")
    return {
        "long": (BLACK + scene + 1.5 * noise).round().long(),
        "short": (BLACK + scene / 16 + 1.5 * noise.flip(-1)).round().long(),
        "exposures": torch.tensor([[33_333, 2083], [16_667, 1042], [8333, 521]]),
        "stops": torch.tensor([120, -64, 301]),
        "aim": (wanted * 65_535).round().long(),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-2)
