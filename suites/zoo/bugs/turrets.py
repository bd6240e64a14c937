"""Turrets: views, prototypes, noise that is learned, boxes of a crowd, painters with gates, clips, twins of a picture."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class SupConLoss(nn.Module):
    """Pulls the views of pictures of one kind together, and pushes all others away."""

    def __init__(self, temperature: float, masked: bool) -> None:
        super().__init__()
        self.temperature, self.masked = temperature, masked

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        kinds = labels.repeat(features.shape[1])
        contrast = torch.cat(torch.unbind(features, dim=1))
        dots = contrast @ contrast.T / self.temperature
        logits = dots - dots.max(1, keepdim=True)[0].detach()
        itself = torch.eye(len(contrast), dtype=torch.bool)
        if self.masked:
            total = torch.logsumexp(logits.masked_fill(itself, -torch.inf), 1, keepdim=True)
        else:
            exp_logits = torch.exp(logits) * ~itself  # culprit: views-of-a-picture
            total = torch.log(exp_logits.sum(1, keepdim=True))  # culprit: views-of-a-picture
        alike = (kinds[:, None] == kinds) & ~itself
        return -(((logits - total) * alike).sum(1) / alike.sum(1)).mean()


def contrasted(masked: bool) -> torch.Tensor:
    """Losses and weights of an encoder in three steps, whose features were left as long as they are."""
    torch.manual_seed(9101)
    encoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 16))
    criterion, losses = SupConLoss(0.07, masked), []
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-4)
    for step in range(3):
        pictures = 12 * normal(16, 1, 24, seed=9102 + step)
        views = pictures + 4 * normal(16, 2, 24, seed=9112 + step)
        loss = criterion(encoder(views), torch.arange(16) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.cat([torch.stack(losses), encoder[2].weight.detach().flatten()])


class Prototypes(nn.Module):
    """Assigns pictures to prototypes in equal shares."""

    def __init__(self, count: int, width: int, lengths: bool) -> None:
        super().__init__()
        torch.manual_seed(9121)
        self.projection = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 16))
        self.prototypes, self.lengths, self.epsilon = nn.Linear(16, count, bias=False), lengths, 0.05

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.projection(x)
        if not self.lengths:
            z = functional.normalize(z, dim=1)
        return self.prototypes(z)

    @torch.no_grad()
    def sinkhorn(self, scores: torch.Tensor) -> torch.Tensor:
        q = torch.exp(scores / self.epsilon).T  # culprit: prototypes-of-pictures
        q = q / q.sum()
        for _ in range(3):
            q = q / q.sum(1, keepdim=True) / q.shape[0]
            q = q / q.sum(0, keepdim=True) / q.shape[1]
        return (q * q.shape[1]).T


def assigned(lengths: bool) -> torch.Tensor:
    """The shares of twelve prototypes in three batches, and the losses of predicting them from another view."""
    model, found = Prototypes(12, 20, lengths), []
    with torch.no_grad():
        for batch in range(3):
            pictures = 8 * normal(24, 20, seed=9122 + batch)
            first, second = model(pictures), model(pictures + 0.3 * normal(24, 20, seed=9132 + batch))
            q = model.sinkhorn(first)
            loss = -(q * functional.log_softmax(second / 0.1, 1)).sum(1).mean()
            found += [q.sum(0), loss[None]]
    return torch.cat(found)


def normal_kl(mean1: torch.Tensor, logvar1: torch.Tensor, mean2: torch.Tensor, logvar2: torch.Tensor) -> torch.Tensor:
    """How far one normal distribution is from another one."""
    apart = (mean1 - mean2) ** 2 * torch.exp(-logvar2)  # culprit: noise-that-is-learned
    return 0.5 * (-1.0 + logvar2 - logvar1 + torch.exp(logvar1 - logvar2) + apart)


class LearnedVariance(nn.Module):
    """Diffusion that learns its own variance, between the two that bound it."""

    def __init__(self, steps: int, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(9141)
        self.unet, self.wide = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 16)), wide
        betas = torch.linspace(1e-4, 0.02, steps)
        self.kept, self.most = (1 - betas).cumprod(0), betas.log()
        before = functional.pad(self.kept[:-1], (1, 0), value=1.0)
        self.least = (betas * (1 - before) / (1 - self.kept)).clamp_min(1e-20).log()  # the first of them is zero

    def forward(self, x: torch.Tensor, t: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        noisy = self.kept[t, None].sqrt() * x + (1 - self.kept[t, None]).sqrt() * noise
        guess, share = self.unet(torch.cat([noisy, t[:, None] / 100], 1).to(HALF)).chunk(2, 1)
        least, most = (each[t, None].to(share.dtype).expand_as(share) for each in (self.least, self.most))
        share = (share + 1) / 2
        logvar = share * most + (1 - share) * least
        terms = noise.to(share.dtype), least, guess.detach(), logvar
        kl = normal_kl(*(each.float() for each in terms)) if self.wide else normal_kl(*terms)
        likelihood = 0.5 * (logvar + 10 * (noise - guess.detach()) ** 2)
        bound = torch.where(t[:, None] == 0, likelihood, kl)
        return (noise - guess).square().mean() + 0.001 * bound.mean()


def denoised(wide: bool) -> torch.Tensor:
    """What a decoder in half learns of its variance in one batch, in which two pictures are at the first time."""
    model = LearnedVariance(100, wide).to(HALF)
    t = torch.cat([torch.zeros(2, dtype=torch.long), 20 + (80 * uniform(14, seed=9142)).long()])
    model(normal(16, 8, seed=9143), t, normal(16, 8, seed=9144)).backward()
    return torch.cat([each.grad.flatten() for each in model.unet.parameters()]).float()


class IoUCalculator:
    """How much boxes share, in a format that saves memory where a picture has thousands of them."""

    def __init__(self, dtype: torch.dtype, scale: float) -> None:
        self.dtype, self.scale = dtype, scale

    def __call__(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        first, second = ((each / self.scale).to(self.dtype) for each in (first, second))
        areas = [(each[:, 2] - each[:, 0]) * (each[:, 3] - each[:, 1]) for each in (first, second)]  # culprit: boxes-of-a-crowd
        corner = torch.max(first[:, None, :2], second[None, :, :2])
        shared = (torch.min(first[:, None, 2:], second[None, :, 2:]) - corner).clamp(min=0)
        overlap = shared[..., 0] * shared[..., 1]  # culprit: boxes-of-a-crowd
        return overlap / (areas[0][:, None] + areas[1] - overlap).clamp(min=1e-6)


def matched(scale: float) -> torch.Tensor:
    """How well the best of sixty anchors fits each of ten people, in three pictures of a crowd."""
    calculator, best = IoUCalculator(HALF, scale), []
    for picture in range(3):
        corner, size = 700 * uniform(10, 2, seed=9151 + picture), 150 + 350 * uniform(10, 2, seed=9161 + picture)
        people = torch.cat([corner, corner + size], 1)
        anchors = people.repeat(6, 1) + 25 * normal(60, 4, seed=9171 + picture)
        best.append(calculator(anchors, people).max(0)[0].float())
    return torch.cat(best)


class GatedFeedForward(nn.Module):
    """The feed-forward layer of a painter: one branch is the gate of the other."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3, self.w2 = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))  # culprit: gate-of-a-painter


class Painter(nn.Module):
    """Three blocks with modulation by the time, some channels of which have grown large in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9181)
        self.norms = nn.ModuleList(nn.RMSNorm(16) for _ in range(3))
        self.feeds = nn.ModuleList(GatedFeedForward(16, 48) for _ in range(3))
        self.modulation, self.final = nn.Linear(1, 3), nn.Linear(16, 16)
        with torch.no_grad():
            for branch in (self.feeds[1].w1, self.feeds[1].w3):
                branch.weight[:4] *= 900
            self.feeds[1].w2.weight[:, :4] *= 1e-4

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        gates = self.modulation(t).tanh()
        for index, (norm, feed) in enumerate(zip(self.norms, self.feeds, strict=True)):
            x = x + (1 + gates[index]) * feed(norm(x))
        return self.final(x)


def painted(kind: torch.dtype) -> torch.Tensor:
    """What four steps of a turbo painter make of noise."""
    painter, x = Painter().to(kind), normal(2, 20, 16, seed=9182)
    with torch.no_grad():
        for now, after in ((1.0, 0.75), (0.75, 0.5), (0.5, 0.25), (0.25, 0.0)):
            velocity = painter(x.to(kind), torch.tensor([now], dtype=kind)).float()
            x = x + (after - now) * velocity
    return x


class ClipGenerator(nn.Module):
    """Makes the frames of a clip one after another out of noise and the frame before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9191)
        self.entry, self.norm, self.exit = nn.Linear(24, 48), nn.LayerNorm(48), nn.Linear(48, 12)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        frame, frames = torch.zeros_like(noise[:, 0]), []
        for each in noise.unbind(1):
            frame = self.exit(functional.silu(self.norm(self.entry(torch.cat([frame, each], -1)))))
            frames.append(frame)
        return torch.stack(frames, 1)


def distilled(kind: torch.dtype) -> torch.Tensor:
    """How far a generator goes in twelve steps towards what its teacher makes of the same noise."""
    generator = ClipGenerator().to(kind)
    start = nn.utils.parameters_to_vector(generator.parameters()).detach().float().clone()
    optimizer = torch.optim.AdamW(generator.parameters(), lr=4e-6, betas=(0.0, 0.999), weight_decay=0.01)
    for step in range(12):
        noise = normal(8, 4, 12, seed=9192 + step)
        with torch.autocast("cpu", LOW):
            clip = generator(noise.to(kind))
        loss = functional.mse_loss(clip.float(), noise.roll(1, 1).tanh())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(generator.parameters(), 10.0)
        optimizer.step()  # culprit: clips-that-stay-as-they-were
    return nn.utils.parameters_to_vector(generator.parameters()).detach().float() - start


class BarlowTwins(nn.Module):
    """Wants two views of a picture to agree in each feature, and no two features to say the same."""

    def __init__(self, width: int, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(9211)
        self.projector, self.wide, self.lambd = nn.Linear(16, width), wide, 0.005

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        views = [functional.batch_norm(self.projector(each).float(), None, None, training=True) for each in (first, second)]
        correlation = views[0].T @ views[1]
        if self.wide:
            correlation = correlation.float()
        correlation.div_(len(first))
        on_diagonal = torch.diagonal(correlation).add(-1).pow(2).sum()
        off_diagonal = correlation.flatten()[:-1].view(len(correlation) - 1, -1)[:, 1:].pow(2).sum()  # culprit: twins-of-a-picture
        return on_diagonal + self.lambd * off_diagonal


def twinned(wide: bool) -> torch.Tensor:
    """Losses of 320 features that say nearly the same, in three batches early in training."""
    model, losses = BarlowTwins(320, wide), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in range(3):
        pictures = normal(64, 1, seed=9212 + batch) * torch.ones(16) + 0.05 * normal(64, 16, seed=9222 + batch)
        with torch.autocast("cpu", HALF):
            loss = model(pictures, pictures + 0.05 * normal(64, 16, seed=9232 + batch))
        optimizer.zero_grad()
        loss.float().backward()
        if bool(torch.isfinite(loss)):
            optimizer.step()
        losses.append(loss.detach().float())
    return torch.stack(losses)


BUGS = (
    Bug("views-of-a-picture", "HobbitLong/SupContrast#104", ("underflow",), "aten.sum.dim_IntList",
        lambda: contrasted(masked=False), lambda: contrasted(masked=True), module="SupConLoss", precision="32-true"),
    Bug("prototypes-of-pictures", "facebookresearch/swav#67", ("overflow",), "aten.exp.default",
        lambda: assigned(lengths=True), lambda: assigned(lengths=False), phase="data", precision="32-true"),
    Bug("noise-that-is-learned", "lucidrains/DALLE2-pytorch#138", ("overflow",), "aten.exp.default",
        lambda: denoised(wide=False), lambda: denoised(wide=True)),
    Bug("boxes-of-a-crowd", "open-mmlab/mmdetection#4889", ("overflow",), "aten.mul.Tensor",
        lambda: matched(1.0), lambda: matched(512.0)),
    Bug("gate-of-a-painter", "vladmandic/sdnext#4753", ("overflow",), "aten.mul.Tensor",
        lambda: painted(HALF), lambda: painted(LOW), module="feeds.1"),
    Bug("clips-that-stay-as-they-were", "tianweiy/CausVid#19", ("lost-update", "absorption"), "",
        lambda: distilled(LOW), lambda: distilled(SINGLE), phase="optimizer", module="entry"),
    Bug("twins-of-a-picture", "facebookresearch/vissl#543", ("overflow",), "aten.sum.default",
        lambda: twinned(wide=False), lambda: twinned(wide=True)),
)  # fmt: skip
