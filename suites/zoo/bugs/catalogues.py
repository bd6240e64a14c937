"""Catalogues: pairs of items, k-mers, neighbours in a cloud, times of a next visit, draws of rare words, clips of a film."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Shop(nn.Module):
    """Users and items, whose vectors are means of their neighbours' vectors in the graph of what was bought."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        torch.manual_seed(16)
        self.users, self.items = users, items
        self.vectors = nn.Parameter(1.4 * torch.randn(users + items, 16))
        bought = (uniform(users, items, seed=3) < 0.3).float()
        graph = torch.zeros(users + items, users + items)
        graph[:users, users:], graph[users:, :users] = bought, bought.T
        degree = graph.sum(1).clamp_min(1)
        self.register_buffer("graph", graph / (degree[:, None] * degree).sqrt())

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        seen = [self.vectors]
        for _ in range(2):
            seen.append(self.graph @ seen[-1])
        return torch.stack([each.to(self.vectors.dtype) for each in seen]).sum(0).split([self.users, self.items])


def pair_loss(user: torch.Tensor, liked: torch.Tensor, other: torch.Tensor, steady: bool) -> torch.Tensor:
    """How surely each user likes the one item better than the other."""
    better = torch.einsum("bd,bd->b", user, liked - other)
    if steady:
        return nn.functional.softplus(-better).mean()
    return -torch.log(torch.sigmoid(better)).mean()  # culprit: pairs-of-items


def shopped(steady: bool, low: bool = True) -> torch.Tensor:
    """The losses of three turns of training, by half under autocast. Inf."""
    shop = Shop(30, 50)
    optimizer = torch.optim.Adam(shop.parameters(), 0.001)
    losses = []
    for turn in range(3):
        picks = torch.Generator().manual_seed(turn)
        who, liked, other = (torch.randint(0, top, (200,), generator=picks) for top in (30, 50, 50))
        with torch.autocast("cpu", HALF, enabled=low):
            users, items = shop()
            loss = pair_loss(users[who], items[liked], items[other], steady)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(wider(loss.detach()))
    return torch.stack(losses)


def counts_of_words(sequence: torch.Tensor, length: int) -> torch.Tensor:
    """How often each word of that many letters is found in a sequence of four letters."""
    places = 4 ** torch.arange(length)
    return torch.bincount((sequence.unfold(0, length, 1) * places).sum(-1), minlength=4**length)


def likeness(samples: torch.Tensor, centred: bool) -> torch.Tensor:
    """Pearson's correlation of each sample with each other."""
    if centred:
        told = samples - samples.mean(1, keepdim=True)
        return told @ told.T / (told.norm(dim=1)[:, None] * told.norm(dim=1))
    total, squares, number = samples.sum(1), samples.square().sum(1), samples.shape[1]
    joint = number * (samples @ samples.T) - total[:, None] * total  # culprit: likeness-of-k-mers
    spread = (number * squares - total.square()).sqrt()  # culprit: likeness-of-k-mers
    return joint / (spread[:, None] * spread)


def genomes(centred: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Of six genomes by their words of three letters, each of which is found about three million times. Garbage."""
    sequences = [torch.randint(0, 4, (2000,), generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    shared = torch.stack([counts_of_words(torch.cat([sequences[0][:1200], each[1200:]]), 3) for each in sequences])
    return likeness((3_000_000 + 30 * shared).to(dtype), centred)


class Cloud(nn.Module):
    """A network of a point cloud that mixes each point with its nearest ones."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(17)
        self.wide = wide
        self.first, self.last = nn.Linear(6, 24), nn.Linear(24, 4)

    def nearest(self, points: torch.Tensor, count: int) -> torch.Tensor:
        if self.wide:
            return torch.cdist(wider(points), wider(points), compute_mode="donot_use_mm_for_euclid_dist").topk(count, -1, largest=False).indices
        inner = -2 * points @ points.T
        squares = points.square().sum(-1, keepdim=True)
        return (-squares - inner - squares.T).topk(count, -1).indices  # culprit: neighbours-in-a-cloud

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        told = points - points.mean(0)
        edges = told[self.nearest(points, 6)] - told[:, None]
        mixed = torch.relu(self.first(torch.cat([edges, told[:, None].expand_as(edges)], -1))).amax(1)
        return self.last(mixed)


def clouds(wide: bool, dtype: torch.dtype = HALF) -> torch.Tensor:
    """What the network makes of 120 points of a street, thirty metres from where it is measured. Off by 16 %."""
    with torch.no_grad():
        points = (torch.tensor([30.0, -20.0, 2.0]) + normal(120, 3)).to(dtype)
        return wider(Cloud(wide).to(dtype)(points))


class Visits(nn.Module):
    """Learns when a customer comes again: how the hazard grows with time."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(18)
        self.wide = wide
        self.cell, self.out = nn.GRUCell(3, 16), nn.Linear(16, 2)

    def forward(self, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.zeros(len(past), 16, dtype=past.dtype)
        for step in range(past.shape[1]):
            hidden = self.cell(past[:, step], hidden)
        scale, shape = self.out(hidden).unbind(-1)
        return 60 * torch.exp(0.3 * scale), 1 + 0.3 * nn.functional.softplus(shape)

    def likelihood(self, past: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        scale, shape = self(past)
        if self.wide:
            scale, shape, time = wider(scale), wider(shape), wider(time)
        before, after = (time / scale) ** shape, ((time + 1) / scale) ** shape  # culprit: time-to-the-next-visit
        if self.wide:
            return torch.log(torch.expm1(after - before)) - after
        return torch.log(torch.exp(after - before) - 1) - after  # culprit: time-to-the-next-visit


def visits(wide: bool, dtype: torch.dtype = LOW) -> torch.Tensor:
    """How likely the next visits of 40 customers were, and what they teach. Off by 8 %."""
    model = Visits(wide).to(dtype)
    past, time = normal(40, 5, 3).to(dtype), (1 + 60 * uniform(40, seed=4)).floor().to(dtype)
    likely = model.likelihood(past, time)
    (-likely.clamp_min(-20).mean()).backward()
    return wider(likely.detach().clamp_min(-20))


class Words:
    """Draws words that were not said, as often as they are found."""

    def __init__(self, counts: torch.Tensor, dtype: torch.dtype) -> None:
        chance = (counts / counts.sum()).to(dtype)  # culprit: draws-of-rare-words
        self.until = chance.cumsum(0)  # culprit: draws-of-rare-words

    def draw(self, chances: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self.until, chances.to(self.until.dtype)).clamp(max=len(self.until) - 1)


def negatives(dtype: torch.dtype) -> torch.Tensor:
    """How often each of 2000 words is drawn of a million. Most rare ones never are. Garbage."""
    counts = torch.cat([torch.full((200,), 500.0), torch.full((1800,), 5.0)])
    drawn = Words(counts, dtype).draw((torch.arange(1_000_000) + 0.5) / 1_000_000)
    return torch.bincount(drawn, minlength=2000).float()[200:]


class Film:
    """Pictures of a film that begins at a time and has so many a second."""

    def __init__(self, begin: float, rate: float, count: int) -> None:
        self.begin, self.rate, self.count = begin, rate, count
        self.pictures = normal(count, 12)

    def at(self, seconds: float) -> torch.Tensor:
        if not self.begin <= seconds < self.begin + self.count / self.rate:
            raise ValueError(f"no picture at {seconds:.6f} s: the film begins at {self.begin:.6f} s")
        return self.pictures[int((seconds - self.begin) * self.rate + 1e-6)]


def clips(dtype: torch.dtype) -> torch.Tensor:
    """What a network sees of four clips of three pictures. The first begins a little before the film."""
    torch.manual_seed(19)
    film, net = Film(0.083417, 29.97, 300), nn.Linear(36, 5)
    starts = torch.arange(4, dtype=dtype) * 2 + torch.tensor(film.begin, dtype=dtype)  # culprit: clips-from-the-start
    times = starts[:, None] + torch.arange(3, dtype=dtype) / film.rate  # culprit: clips-from-the-start
    with torch.no_grad():
        return net(torch.stack([torch.cat([film.at(float(time)) for time in each]) for each in times]))


BUGS = (
    Bug("pairs-of-items", "xiangwang1223/neural_graph_collaborative_filtering#17", ("underflow", "overflow", "nan"), "aten.sigmoid.default",
        lambda: shopped(False), lambda: shopped(True)),
    Bug("likeness-of-k-mers", "MatthewRalston/kmerdb#88", ("integer-rounding", "cancellation", "amplified-rounding", "nan"), "aten.sub.Tensor",
        lambda: genomes(False), lambda: genomes(True), precision="32-true"),
    Bug("neighbours-in-a-cloud", "WangYueFt/dgcnn#20", ("decision-flip", "cancellation", "amplified-rounding"), "aten.topk.default",
        lambda: clouds(False), lambda: clouds(True)),
    Bug("time-to-the-next-visit", "ragulpr/wtte-rnn#39", ("cancellation", "amplified-rounding", "underflow", "overflow"), "aten.sub.Tensor",
        lambda: visits(False), lambda: visits(True)),
    Bug("draws-of-rare-words", "torch/torch7#418", ("decision-flip", "amplified-rounding", "absorption", "cancellation"), "aten.cumsum.default",
        lambda: negatives(HALF), lambda: negatives(DOUBLE)),
    Bug("clips-from-the-start", "meta-pytorch/torchcodec#1294", ("decision-flip", "amplified-rounding"), "aten._to_copy.default",
        lambda: clips(SINGLE), lambda: clips(DOUBLE), raises=ValueError, precision="32-true",
        expected_miss="a time is right to a rounding, and before the film begins by less than that; it is Python that compares it and refuses it"),
)  # fmt: skip
