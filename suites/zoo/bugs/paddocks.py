"""Paddocks: pictures that nobody labelled, pixels that were counted, losses of spectra, mixtures, splats seen from their edge, clipped gradients."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, SINGLE = torch.float16, torch.float32
UNLABELLED = 255


class SemanticLoss(nn.Module):
    """Cross entropy of the pixels that have a label; a batch without any gives nought, and keeps the graph."""

    def __init__(self, one: bool) -> None:
        super().__init__()
        self.one = one

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if bool((labels == UNLABELLED).all()):
            kept = logits.flatten()[0] if self.one else logits.sum()  # culprit: pictures-nobody-labelled
            return kept.float() * 0  # culprit: pictures-nobody-labelled
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=UNLABELLED)


def taught(one: bool) -> torch.Tensor:
    """The losses of three steps of a network in half, and its bias after them; of the second batch nothing is labelled."""
    torch.manual_seed(7201)
    net, loss, losses = nn.Linear(3, 5).to(HALF), SemanticLoss(one), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with torch.no_grad():
        net.bias += 12
    for step in range(3):
        labels = (5 * uniform(2, 1600, seed=7202 + step)).long()
        if step == 1:
            labels.fill_(UNLABELLED)
        value = loss(net(normal(2, 1600, 3, seed=7212 + step).to(HALF)), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return torch.cat([torch.stack(losses), net.bias.detach().float()])


class Accuracy:
    """Which share of pixels was right, over a whole evaluation."""

    def __init__(self, exact: bool) -> None:
        self.right = torch.tensor(0, dtype=torch.int64) if exact else torch.tensor(0.0)
        self.seen = 0

    def load(self, right: int, seen: int) -> None:
        self.right.fill_(right)
        self.seen = seen

    def update(self, found: torch.Tensor, labels: torch.Tensor) -> None:
        for mine, theirs in zip(found.tolist(), labels.tolist(), strict=True):
            self.seen += 1
            if mine == theirs:
                self.right += 1  # culprit: pixels-that-were-right


def counted(exact: bool) -> torch.Tensor:
    """The share of pixels that were right in each of three more pictures, by what the count grew; seventeen million were right before."""
    accuracy, shares = Accuracy(exact), []
    accuracy.load(17_000_000, 25_000_000)
    for picture in range(3):
        before, seen = accuracy.right.double(), accuracy.seen
        labels = (4 * uniform(80, seed=7221 + picture)).long()
        accuracy.update(torch.where(uniform(80, seed=7231 + picture) < 0.8, labels, 3 - labels), labels)
        shares.append(((accuracy.right.double() - before) / (accuracy.seen - seen)).float())
    return torch.stack(shares)


class SpectralLoss(nn.Module):
    """How far the spectrum of one picture is from that of another; sums over pixels are products with waves."""

    def __init__(self, size: int, wide: bool) -> None:
        super().__init__()
        angles = 2 * math.pi * torch.arange(size)[:, None] * torch.arange(size) / size
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.wide = wide

    def spectrum(self, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.cos.to(picture.dtype), self.sin.to(picture.dtype)
        real, imaginary = picture @ cos, picture @ sin
        return cos @ real - sin @ imaginary, sin @ real + cos @ imaginary

    def forward(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        if self.wide:
            found, wanted = found.float(), wanted.float()
        (real, imaginary), (other, another) = self.spectrum(found), self.spectrum(wanted)
        return ((real - other).square() + (imaginary - another).square()).mean()  # culprit: pictures-without-high-waves


def restored(wide: bool) -> torch.Tensor:
    """The losses of two steps of a network in half that restores pictures."""
    torch.manual_seed(7241)
    net, loss, losses = nn.Linear(32, 32).to(HALF), SpectralLoss(32, wide), []
    for step in range(2):
        pictures = uniform(2, 32, 32, seed=7242 + step).to(HALF)
        value = loss(net(pictures), pictures)
        value.backward()
        losses.append(value.detach().float())
    return torch.cat([torch.stack(losses), net.bias.grad.float()])


class Mixture:
    """Balls that data are drawn from, fitted step by step."""

    def __init__(self, means: torch.Tensor, centred: bool) -> None:
        self.means, self.variances, self.centred = means, torch.full((len(means),), 4.0), centred

    def responsible(self, x: torch.Tensor) -> torch.Tensor:
        apart = (x[:, None] - self.means).square().sum(-1)
        return (-0.5 * apart / self.variances - 0.5 * x.shape[1] * self.variances.log()).softmax(1)

    def fit(self, x: torch.Tensor) -> None:
        shares = self.responsible(x)
        counts = shares.sum(0)[:, None]
        self.means = shares.T @ x / counts
        if self.centred:
            apart = (x[:, None] - self.means).square()
            self.variances = ((shares[..., None] * apart).sum(0) / counts).mean(1) + 1e-6
        else:
            squares = shares.T @ (x * x) / counts
            self.variances = (squares - self.means * self.means).mean(1) + 1e-6  # culprit: balls-far-from-nought


def fitted(centred: bool) -> torch.Tensor:
    """The variances of three balls after each of two steps; years are one of the numbers."""
    centres = torch.tensor([[1985.0, 3010.0], [1999.0, 3020.0], [2015.0, 3030.0]])
    x = (centres[:, None] + 0.3 * normal(3, 80, 2, seed=7251)).flatten(0, 1)
    mixture, variances = Mixture(centres + 0.2, centred), []
    for _ in range(2):
        mixture.fit(x)
        variances.append(mixture.variances)
    return torch.stack(variances)


class Splatter:
    """Draws flat bodies as stains on a picture."""

    def __init__(self, size: int, minors: bool) -> None:
        places = torch.arange(size) - size / 2 + 0.5
        self.pixels, self.minors = torch.stack([places.expand(size, size), places[:, None].expand(size, size)], -1), minors

    def conic(self, axes: torch.Tensor) -> torch.Tensor:
        """The inverse of the spread on the picture of bodies, by what their axes look like there."""
        spread = axes @ axes.mT
        a, b, c = spread[:, 0, 0], spread[:, 0, 1], spread[:, 1, 1]
        if self.minors:
            determinant = torch.linalg.cross(axes[:, 0], axes[:, 1]).square().sum(-1)
        else:
            determinant = a * c - b * b  # culprit: splats-seen-from-the-edge
        return torch.stack([c, -b, -b, a], -1).view(-1, 2, 2) / determinant[:, None, None]

    def draw(self, axes: torch.Tensor, colours: torch.Tensor) -> torch.Tensor:
        reach = torch.einsum("xyi,nij,xyj->nxy", self.pixels, self.conic(axes), self.pixels)
        return (torch.exp(-0.5 * reach)[..., None] * colours[:, None, None]).sum(0)


def splatted(minors: bool) -> torch.Tensor:
    """Twelve bodies that are long and thin, most of which are seen from their edge."""
    angles = math.pi * uniform(12, seed=7261)
    along, across = torch.stack([angles.cos(), angles.sin()], -1), torch.stack([-angles.sin(), angles.cos()], -1)
    axes = torch.stack([300 * along, 120 * along + 0.02 * across, 0.01 * across], -1)
    return Splatter(24, minors).draw(axes, uniform(12, 3, seed=7262))


class Recipe:
    """Trains a recogniser of lips under autocast in half, with a scaler."""

    def __init__(self, model: nn.Module, most: float, unscales: bool) -> None:
        self.model, self.most, self.unscales = model, most, unscales
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(self, x: torch.Tensor, words: torch.Tensor) -> None:
        with torch.autocast("cpu", dtype=HALF):
            out = self.model(x)
        loss = functional.cross_entropy(out.float(), words)
        self.scaler.scale(loss).backward()
        if self.unscales:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.most)  # culprit: lips-that-learn-slowly
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def learned(unscales: bool) -> torch.Tensor:
    """How far the weights of a recogniser have come in three steps."""
    torch.manual_seed(7271)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 6))
    before, recipe = model[2].weight.detach().clone(), Recipe(model, 1.0, unscales)
    for step in range(3):
        recipe.step(normal(24, 20, seed=7272 + step), torch.arange(24) % 6)
    return model[2].weight.detach() - before


BUGS = (
    Bug("pictures-nobody-labelled", "ultralytics/ultralytics#25097", ("overflow", "nan"), "aten.sum.default",
        lambda: taught(one=False), lambda: taught(one=True), module="SemanticLoss", step=2),
    Bug("pixels-that-were-right", "apache/mxnet#8226", ("absorption", "integer-rounding"), "aten.add_.Tensor",
        lambda: counted(exact=False), lambda: counted(exact=True), precision="32-true"),
    Bug("pictures-without-high-waves", "Jiahao000/MFM#7", ("overflow",), "aten.pow.Tensor_Scalar",
        lambda: restored(wide=False), lambda: restored(wide=True), module="SpectralLoss"),
    Bug("balls-far-from-nought", "scikit-learn/scikit-learn#30382", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: fitted(centred=False), lambda: fitted(centred=True), precision="32-true"),
    Bug("splats-seen-from-the-edge", "aras-p/UnityGaussianSplatting#14", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: splatted(minors=False), lambda: splatted(minors=True), precision="32-true"),
    Bug("lips-that-learn-slowly", "k2-fsa/icefall#2081", ("scaler-order",), "",
        lambda: learned(unscales=False), lambda: learned(unscales=True), phase="scaler"),
)  # fmt: skip
