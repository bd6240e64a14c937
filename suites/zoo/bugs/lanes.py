"""Lanes: neighbours of points, running spreads in half, numbers of pictures, beams that ended, penalties of small weights, delay lines."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, SINGLE = torch.float16, torch.float32


class Descent:
    """Improves a list of near neighbours by looking at neighbours of neighbours."""

    def __init__(self, points: torch.Tensor, wide: bool) -> None:
        self.points, self.wide = points, wide

    def apart(self, one: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """How far each point is from some others, by norms and products."""
        x, y = self.points[one][:, None], self.points[others]
        norms = x.square().sum(-1) + y.square().sum(-1)
        if self.wide:
            return (x - y).square().sum(-1).sqrt()
        products = (x.half() * y.half()).sum(-1)  # culprit: neighbours-by-descent
        return (norms - 2 * products.float()).sqrt()  # culprit: neighbours-by-descent

    def improve(self, near: torch.Tensor, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(len(self.points))
        distances = self.apart(rows, near)
        for _ in range(rounds):
            tried = torch.cat([near, near[near].flatten(1)], 1)
            distances, places = self.apart(rows, tried).topk(near.shape[1], largest=False)
            near = tried.gather(1, places)
        return distances, near


def neighbours(wide: bool) -> torch.Tensor:
    """Distances of two moons' points to their neighbours."""
    angles = torch.pi * uniform(300, seed=6201)
    points = torch.stack([angles.cos() + 3, angles.sin() + 2], 1) + 0.02 * normal(300, 2, seed=6202)
    points[150:] = points[:150] + 0.002 * normal(150, 2, seed=6203)
    near = (torch.arange(300)[:, None] + torch.tensor([1, 150, 151, 7])) % 300
    return Descent(points, wide).improve(near, 2)[0]


def to_half(net: nn.Module, keeps: bool) -> nn.Module:
    """A network in half, whose batch norms compute in float32."""
    kept = {name: value.clone() for name, value in net.named_buffers() if value.is_floating_point()}
    net.half()  # culprit: spreads-that-passed-through-half
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    if keeps:
        for name, value in net.named_buffers():
            if name in kept:
                value.copy_(kept[name])
    return net


class Features(nn.Module):
    """A small network on pictures, whose norms compute in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6211)
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.last = nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.norm(x.float()).to(x.dtype)  # culprit: spreads-that-passed-through-half
        return self.last(functional.relu(x)).mean((-1, -2))


def normalised(keeps: bool) -> torch.Tensor:
    """Features of pictures with values up to 255 and beyond, for which the spread of a channel was learned."""
    net = Features()
    net.train()
    pictures = 900 * normal(16, 3, 8, 8, seed=6212)
    with torch.no_grad():
        for _ in range(40):
            net(pictures)
        net = to_half(net.eval(), keeps)
        return net(pictures.to(HALF)).float()


class Evaluator:
    """Counts how many objects of a picture were found. Detections come as rows: the picture's number, four sides and a score."""

    def __init__(self, truth: dict[int, torch.Tensor]) -> None:
        self.truth, self.rows = truth, []

    def add(self, numbers: list[int], boxes: torch.Tensor, scores: torch.Tensor, exact: bool) -> None:
        kind = torch.float64 if exact else SINGLE
        column = torch.tensor(numbers, dtype=kind)[:, None]  # culprit: pictures-with-long-numbers
        self.rows.append(torch.cat([column, boxes.to(kind), scores[:, None].to(kind)], 1))

    def recall(self) -> torch.Tensor:
        """For each picture, the share of its objects that a detection covers by half."""
        rows, shares = torch.cat(self.rows), []
        for number, boxes in self.truth.items():
            mine = rows[rows[:, 0].long() == number, 1:5].float()  # culprit: pictures-with-long-numbers
            shares.append((box_overlaps(boxes, mine) > 0.5).any(1).float().mean() if len(mine) else torch.tensor(0.0))
        return torch.stack(shares)


def box_overlaps(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    low, high = torch.maximum(one[:, None, :2], other[:, :2]), torch.minimum(one[:, None, 2:], other[:, 2:])
    both = (high - low).clamp_min(0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (one, other)]
    return both / (areas[0][:, None] + areas[1] - both)


def evaluated(exact: bool) -> torch.Tensor:
    """The recall of a detector on twenty pictures of a film, whose numbers have eleven digits."""
    truth, evaluator = {}, Evaluator({})
    for picture in range(20):
        corners = 50 * uniform(3, 2, seed=6221 + picture)
        boxes = torch.cat([corners, corners + 10 + 20 * uniform(3, 2, seed=7221 + picture)], 1)
        truth[10_236_529_664 + picture] = boxes
        found = boxes + 2 * normal(3, 4, seed=8221 + picture)
        evaluator.add([10_236_529_664 + picture] * 3, found, uniform(3, seed=9221 + picture), exact)
    evaluator.truth = truth
    return evaluator.recall()


class Beams:
    """Sentences that a translator tries side by side. A place that holds none has a score that none can have."""

    def __init__(self, width: int, dtype: torch.dtype, infinite: bool) -> None:
        self.none = -torch.inf if infinite else torch.finfo(SINGLE).min
        self.scores = torch.full((width,), self.none).to(dtype)  # culprit: beams-that-ended
        self.scores[0] = 0
        self.lengths = torch.zeros(width)

    def step(self, likely: torch.Tensor) -> None:
        """Goes on with the best; a sentence that has its last word makes room."""
        width, words = likely.shape
        scores, places = (self.scores[:, None] + likely).flatten().topk(width)
        self.lengths = self.lengths[places // words] + 1
        ended = places % words == 0
        none = torch.tensor(self.none, dtype=SINGLE).to(scores.dtype)  # culprit: beams-that-ended
        self.scores = torch.where(ended, none, scores)

    def alive(self) -> torch.Tensor:
        return self.scores.float() != self.none  # culprit: beams-that-ended

    def mean(self) -> torch.Tensor:
        """The mean score of a word over all sentences that are alive."""
        alive = self.alive()
        return (self.scores.float()[alive] / self.lengths[alive]).exp().mean()


def translated(infinite: bool) -> torch.Tensor:
    """What is reported of six beams in half after each of five words."""
    torch.manual_seed(6231)
    head, beams, reported = nn.Linear(16, 30).to(HALF), Beams(6, HALF, infinite), []
    with torch.no_grad():
        head.bias[0] += 1.5
        for step in range(5):
            likely = head(normal(6, 16, seed=6232 + step).to(HALF)).log_softmax(-1)
            beams.step(likely)
            reported.append(beams.mean())
    return torch.stack(reported)


class Classifier(nn.Module):
    """A network whose loss has a penalty of its weights."""

    def __init__(self, wide: bool, penalty: float) -> None:
        super().__init__()
        torch.manual_seed(6241)
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(HALF)
        self.wide, self.penalty = wide, penalty

    def decay(self) -> torch.Tensor:
        weights = [each for name, each in self.net.named_parameters() if name.endswith("weight")]
        if self.wide:
            weights = [each.float() for each in weights]
        return self.penalty * sum(each.square().sum() / 2 for each in weights)  # culprit: penalty-of-small-weights

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.net(x).float(), labels) * 0 + self.decay().float()


def penalised(wide: bool) -> torch.Tensor:
    """The penalty of a network in half that was made small, as for a warm start."""
    model = Classifier(wide, 2e-4)
    with torch.no_grad():
        for weight in model.net.parameters():
            weight.mul_(2e-3)
        return model(normal(4, 64, seed=6242).to(HALF), torch.arange(4))


class Shifter:
    """Reads a delay line a little faster than it is written, and so shifts the pitch of what is in it."""

    def __init__(self, size: int, ratio: float, wraps: bool) -> None:
        self.line, self.ratio, self.wraps = torch.zeros(size), ratio, wraps
        self.written, self.read = 0, torch.tensor(0.0)

    def start(self, written: int) -> None:
        self.written = written
        self.read = torch.tensor(float(written % len(self.line) if self.wraps else written))

    def process(self, sample: torch.Tensor) -> torch.Tensor:
        self.line[self.written % len(self.line)] = sample
        self.written += 1
        self.read = self.read + self.ratio  # culprit: semitone-after-a-minute
        if self.wraps:
            self.read = self.read % len(self.line)
        left = self.read.floor()
        first, second = (self.line[int(left + each) % len(self.line)] for each in range(2))
        return first + (self.read - left) * (second - first)


def shifted(wraps: bool) -> torch.Tensor:
    """Three hundred samples of a tone, a semitone higher, after twelve minutes at 48 kilohertz."""
    shifter = Shifter(64, 2 ** (1 / 12), wraps)
    shifter.start(64 * 540_000)
    shifter.line = torch.sin(2 * torch.pi * torch.arange(64) / 16)
    tone = torch.sin(2 * torch.pi * torch.arange(300) / 16)
    return torch.stack([shifter.process(sample) for sample in tone])


BUGS = (
    Bug("neighbours-by-descent", "NVIDIA/cuvs#991", ("cancellation", "amplified-rounding", "nan"), "aten.sum.dim_IntList",
        lambda: neighbours(wide=False), lambda: neighbours(wide=True)),
    Bug("spreads-that-passed-through-half", "NVIDIA/apex#144", ("overflow",), "aten._to_copy.default",
        lambda: normalised(keeps=False), lambda: normalised(keeps=True), phase="data"),
    Bug("pictures-with-long-numbers", "google/automl#182", ("integer-rounding",), "aten._to_copy.default",
        lambda: evaluated(exact=False), lambda: evaluated(exact=True), precision="32-true"),
    Bug("beams-that-ended", "marian-nmt/marian-dev#777", ("overflow", "nan"), "aten._to_copy.default",
        lambda: translated(infinite=False), lambda: translated(infinite=True), phase="data"),
    Bug("penalty-of-small-weights", "tensorflow/models#3687", ("underflow", "amplified-rounding"), "aten.pow.Tensor_Scalar",
        lambda: penalised(wide=False), lambda: penalised(wide=True)),
    Bug("semitone-after-a-minute", "Spatial-Media-Lab/OpenSpatialDelay#57", ("absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: shifted(wraps=False), lambda: shifted(wraps=True), precision="32-true"),
)  # fmt: skip
