"""Recognising faces, laid out as a Lightning module: a margin in the angle, a queue of embeddings, centres and counts as buffers."""

import math

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 3
DIM, CLASSES, QUEUE, MARGIN, SCALE = 32, 12, 64, 0.3, 24.0


def cosines(a, b):
    return F.normalize(a.float(), dim=-1) @ F.normalize(b.float(), dim=-1).T


def with_margin(cos, label):
    """cos(angle + margin) for the right class, and cos(angle) for the others."""
    right = cos.gather(1, label[:, None]).clamp(-1 + 1e-6, 1 - 1e-6)
    sine = torch.sqrt(1.0 - right * right)
    moved = right * math.cos(MARGIN) - sine * math.sin(MARGIN)
    return cos.scatter(1, label[:, None], moved)


def angles_to(cos):
    """Angles in degrees."""
    return torch.rad2deg(torch.acos(cos.clamp(-1 + 1e-6, 1 - 1e-6)))


def focal(logits, label, gamma=2.0):
    """Cross entropy that counts hard faces more."""
    logp = F.log_softmax(logits.float(), -1).gather(1, label[:, None]).squeeze(1)
    return (-((-torch.expm1(logp)) ** gamma) * logp).mean()


def blended(centres, emb, label, keep=0.998):
    """Centres of classes that are in the batch move a little towards it."""
    new = centres.clone()
    for c in label.unique():
        new[c] = keep * centres[c] + (1 - keep) * emb[label == c].mean(0)
    return new


def turned(old, new):
    """How far each centre has turned, in degrees. A chord is exact where a cosine is one."""
    chord = (F.normalize(old, dim=-1) - F.normalize(new, dim=-1)).norm(dim=-1)
    return torch.rad2deg(2 * torch.asin(chord / 2))


def counted(seen, label):
    return seen + torch.bincount(label, minlength=CLASSES)


def class_weights(seen):
    """Rare classes count more; weights add up to the number of classes."""
    share = seen.float() / seen.sum()
    effective = (1 - torch.exp(-0.2 / share.clamp(min=1e-6) / 50)).clamp(min=1e-6)
    return effective / effective.sum() * CLASSES


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn1 = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16)
        self.block, self.bn2, self.act = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.PReLU(32)
        self.drop, self.fc, self.bn3 = nn.Dropout(0.1), nn.Linear(32 * 9, DIM), nn.BatchNorm1d(DIM, affine=False)

    def forward(self, x):
        x = F.relu(self.bn1(self.stem(x)))
        x = self.act(self.bn2(self.block(x)))
        return self.bn3(self.fc(self.drop(x.flatten(1))))


class FaceModule(nn.Module):
    """As a LightningModule without a trainer: training_step, log, buffers."""

    def __init__(self):
        super().__init__()
        self.backbone, self.proxies = Backbone(), nn.Parameter(torch.randn(CLASSES, DIM))
        self.register_buffer("queue", F.normalize(torch.randn(QUEUE, DIM), dim=-1))
        self.register_buffer("queue_ptr", torch.zeros((), dtype=torch.long))
        self.register_buffer("centres", torch.randn(CLASSES, DIM))
        self.register_buffer("seen", torch.randint(240, 600, (CLASSES,)))
        self.logged = {}

    def log(self, name, value):
        self.logged[name] = value.detach()

    @torch.no_grad()
    def enqueue(self, emb):
        ptr, n = int(self.queue_ptr), len(emb)
        self.queue[ptr : ptr + n] = F.normalize(emb.float(), dim=-1).to(self.queue.dtype)
        self.queue_ptr.fill_((ptr + n) % QUEUE)

    @torch.no_grad()
    def update_statistics(self, emb, label):
        new = blended(self.centres.float(), emb.float(), label)
        self.log("train/turned", turned(self.centres.float(), new))
        self.centres.copy_(new)
        self.seen.copy_(counted(self.seen, label))

    def training_step(self, image, label):
        emb = self.backbone(image)
        with torch.autocast("cpu", enabled=False):
            cos = cosines(emb, self.proxies)
            logits = SCALE * with_margin(cos, label)
            loss = focal(logits, label)
            weights = class_weights(self.seen)
            own = angles_to(cos).gather(1, label[:, None])
            far = F.relu(cosines(emb, self.queue) - 0.2).square().mean()
            pull = (weights[label] * (emb.float() - self.centres[label].float()).square().mean(-1)).mean()
            total = loss + 0.5 * far + 0.05 * pull
        self.enqueue(emb.detach())
        self.update_statistics(emb.detach(), label)
        self.log("train/angle", own.mean())
        return {"loss": total, "cos": cos, "angle": own, "weights": weights, "turned": self.logged["train/turned"]}

    def forward(self, image, label):
        return self.training_step(image, label)


PRECISIONS = ("bf16-mixed", "16-mixed")  # a conversion of everything makes averages of bfloat16, which stand still


def make():
    torch.manual_seed(0)
    return FaceModule()


def batch():
    g = torch.Generator().manual_seed(21)
    label = torch.randint(0, CLASSES, (16,), generator=g)
    base = torch.rand(CLASSES, 3, 12, 12, generator=g)
    return {"image": (base[label] + 0.3 * torch.rand(16, 3, 12, 12, generator=g)) / 1.3, "label": label}


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=5e-4)
