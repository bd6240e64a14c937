"""The sixth batch, second part: graphs with lone nodes, mixing over time, sampled attention, cells of recurrences."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, language_loss, spread
from torch import nn

W, HEADS, SIZE, WORDS = 24, 3, 8, 17


class Attending(nn.Module):
    """A layer of graph attention. A node without edges gets the bias alone."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.lin, self.bias = ways, nn.Linear(W, W, bias=False), nn.Parameter(torch.zeros(W))
        self.source, self.target = nn.Parameter(torch.randn(HEADS, SIZE)), nn.Parameter(torch.randn(HEADS, SIZE))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        ways, h = self.ways, self.lin(x).unflatten(-1, (HEADS, SIZE))
        start, end = edges.flip(0) if ways.get("turned") else edges
        from_, to = (h * self.source).sum(-1).float(), (h * self.target).sum(-1).float()
        if ways.get("form") == "dense":
            scores = F.leaky_relu(to[:, None] + from_[None], 0.2)
            joined = torch.zeros(len(x), len(x), dtype=torch.bool)
            joined[end, start] = True
            shares = scores.masked_fill(~joined[..., None], -1e30).softmax(1) * joined[..., None]
            made = torch.einsum("ijh,jhd->ihd", shares.to(h.dtype), h)
        else:
            if ways.get("form") == "sorted":
                order = (end * len(x) + start).argsort(descending=True)
                start, end = start[order], end[order]
            scores = F.leaky_relu(from_[start] + to[end], 0.01 if ways.get("slope") else 0.2)
            over = start if ways.get("senders") else end
            place = over[:, None].expand(-1, HEADS)
            most = torch.full((len(x), HEADS), -torch.inf).scatter_reduce(0, place, scores.detach(), "amax")
            shares = (scores - most[over]).exp()
            total = torch.zeros(len(x), HEADS).index_add(0, over, shares)
            shares = shares / total[over]
            made = torch.zeros_like(h, dtype=torch.float32).index_add(0, end, shares[..., None] * h[start].float()).to(h.dtype)
        made = made.mT.flatten(1) if ways.get("order") else made.flatten(1)
        return made + self.bias.to(made.dtype)


class Graph(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.get("form")}
        self.first, self.second, self.third, self.head = Attending(**form), Attending(**ways), Attending(**form), nn.Linear(W, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second, self.third):
            x = F.elu(layer(x, edges))
        return self.head(x)


def graph(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Graph()), Graph(**ways)
    other.load_state_dict(model.state_dict())
    pairs = torch.cartesian_prod(torch.arange(12), torch.arange(12))
    pairs = pairs[torch.rand(len(pairs)) < 0.2]
    return model, other, (torch.randn(12, W), pairs[(pairs[:, 1] != 3) & (pairs[:, 1] != 7)].mT.contiguous()), MEAN


class Mixing(nn.Module):
    """RWKV's: a weighted mean of values so far whose weights decay, with a bonus for the token itself."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.decay, self.bonus = ways, nn.Parameter(torch.randn(W)), nn.Parameter(torch.randn(W))
        self.mix = nn.Parameter(torch.rand(3, W))
        self.key, self.value, self.receptance, self.output = (nn.Linear(W, W, bias=False) for _ in range(4))

    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x[:, 1:], (0, 0, 0, 1)) if self.ways.get("ahead") else F.pad(x[:, :-1], (0, 0, 1, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, before = self.ways, self.shifted(x)
        mix = self.mix.to(x.dtype)
        k, v, r = (layer(torch.lerp(before, x, part)) for layer, part in zip((self.key, self.value, self.receptance), mix, strict=True))
        k, v = k.float(), v.float()
        rate = -(F.softplus(self.decay.float()) if ways.get("soft") else self.decay.float().exp())
        bonus = torch.zeros(W) if ways.get("none") else self.bonus.float()
        length = x.shape[1]
        if ways.get("form") == "other":
            back = (torch.arange(length)[:, None] - torch.arange(length) - 1)[..., None]
            grown = torch.where(back < -1, -math.inf, torch.where(back == -1, bonus, back.clamp(min=0) * rate))
            made = (torch.softmax(grown + k[:, None], 2) * v[:, None]).sum(2)
        else:
            over, under, most, made = torch.zeros(len(x), W), torch.zeros(len(x), W), torch.full((len(x), W), -1e30), []
            for now_k, now_v in zip(k.unbind(1), v.unbind(1), strict=True):
                top = torch.maximum(most, now_k + bonus).detach()
                old, new = (most - top).exp(), (now_k + bonus - top).exp()
                made.append((old * over + new * now_v) / (old * under + new))
                top = torch.maximum(most + rate, now_k).detach()
                old, new = (most + rate - top).exp(), (now_k - top).exp()
                over, under, most = old * over + new * now_v, old * under + new, top
            made = torch.stack(made, 1)
        return self.output((r if ways.get("open") else torch.sigmoid(r)) * made.to(r.dtype))


class Feed(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.up, self.down = ways, nn.Linear(W, 2 * W, bias=False), nn.Linear(2 * W, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.up(x))
        return self.down(y if self.ways.get("plain") else y * y)


class Receptive(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.get("form")}
        self.words, self.head = nn.Embedding(WORDS, W), nn.Linear(W, WORDS, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(W) for _ in range(5))
        self.mixes, self.feeds = nn.ModuleList([Mixing(**form), Mixing(**ways)]), nn.ModuleList([Feed(**form), Feed(**ways)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for number in range(2):
            x = x + self.mixes[number](self.norms[2 * number](x))
            x = x + self.feeds[number](self.norms[2 * number + 1](x))
        return self.head(self.norms[4](x))


def receptive(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Receptive()), Receptive(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(0, WORDS, (2, 10))
    return model, other, tokens, {"loss": language_loss(tokens)}


class Sampled(nn.Module):
    """Deformable attention: each query reads four places of a map, which lie about its own."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.offsets, self.weights = ways, nn.Linear(W, HEADS * 4 * 2), nn.Linear(W, HEADS * 4)
        self.value, self.out = nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, places: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        ways, (high, wide) = self.ways, image.shape[1:3]
        value = self.value(image).unflatten(-1, (HEADS, SIZE)).permute(0, 3, 4, 1, 2).flatten(0, 1)
        sizes = torch.tensor([high, wide] if ways.get("sizes") else [wide, high])
        offsets = self.offsets(x).float().unflatten(-1, (HEADS, 4, 2))
        at = (places[:, :, None, None] + offsets / sizes).transpose(1, 2).flatten(0, 1)  # heads, queries, points, both coordinates
        scores = self.weights(x).float()
        shares = (scores.softmax(-1) * HEADS if ways.get("all") else scores.unflatten(-1, (HEADS, 4)).softmax(-1).flatten(-2)).unflatten(
            -1, (HEADS, 4)
        )
        if ways.get("form") == "other":
            pixels = at * torch.tensor([wide, high]) - 0.5
            low, read = pixels.floor(), 0
            for down in (0, 1):
                for right in (0, 1):
                    column, row = (low + torch.tensor([right, down])).unbind(-1)
                    near = (1 - (pixels[..., 0] - column).abs()) * (1 - (pixels[..., 1] - row).abs())
                    near = near * ((column >= 0) & (column < wide) & (row >= 0) & (row < high))
                    place = (row.clamp(0, high - 1) * wide + column.clamp(0, wide - 1)).long().flatten(1)
                    one = value.flatten(2).gather(-1, place[:, None].expand(-1, SIZE, -1)).unflatten(-1, at.shape[1:3])
                    read = read + one.float() * near[:, None]
        else:
            read = F.grid_sample(value.float(), 2 * at - 1, align_corners=bool(ways.get("corners")))
        made = (read * shares.transpose(1, 2).flatten(0, 1)[:, None]).sum(-1).unflatten(0, (-1, HEADS)).flatten(1, 2).mT
        return self.out(made.to(x.dtype))


class Sampling(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.get("form")}
        self.stem, self.queries = nn.Conv2d(3, W, 3, padding=1), nn.Parameter(torch.randn(6, W))
        self.places, self.layers = nn.Linear(W, 2), nn.ModuleList([Sampled(**form), Sampled(**ways)])
        self.norms, self.boxes = nn.ModuleList(nn.LayerNorm(W) for _ in range(2)), nn.Linear(W, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = F.gelu(self.stem(x)).permute(0, 2, 3, 1)
        y = self.queries.expand(len(x), -1, -1).to(image.dtype)
        places = self.places(y).float().sigmoid()
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = norm(y + layer(y, places, image))
        return self.boxes(y).float().sigmoid()


def sampling(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Sampling(), 0.2), Sampling(**ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 3, 7, 9), MEAN


class Cell(nn.Module):
    """A gated recurrent cell. Torch's multiplies by the reset gate behind the product, the paper's in front of it."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.weight_ih, self.weight_hh = ways, nn.Parameter(torch.randn(3 * W, W)), nn.Parameter(torch.randn(3 * W, W))
        self.bias_ih, self.bias_hh = nn.Parameter(torch.zeros(3 * W)), nn.Parameter(torch.zeros(3 * W))

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        gates = F.linear(x, self.weight_ih, self.bias_ih).chunk(3, -1)
        from_h = F.linear(h.to(x.dtype), self.weight_hh, self.bias_hh).chunk(3, -1)
        reset, update = torch.sigmoid(gates[0] + from_h[0]), torch.sigmoid(gates[1] + from_h[1])
        if self.ways.get("before"):
            new = torch.tanh(gates[2] + F.linear(reset * h, self.weight_hh[2 * W :], self.bias_hh[2 * W :]))
        else:
            new = torch.tanh(gates[2] + reset * from_h[2])
        return update * new + (1 - update) * h if self.ways.get("turned") else new + update * (h - new)


class Translator(nn.Module):
    """An encoder, a decoder whose state asks which of the encoder's to read."""

    def __init__(self, cell: Any, **ways: Any) -> None:
        super().__init__()
        self.ways, self.words, self.encoder, self.decoder = ways, nn.Embedding(WORDS, W), cell(), cell()
        self.ask, self.read, self.score, self.join, self.head = (
            nn.Linear(W, W),
            nn.Linear(W, W),
            nn.Linear(W, 1),
            nn.Linear(2 * W, W),
            nn.Linear(W, WORDS),
        )

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ways, h, states, made = self.ways, torch.zeros(len(source), W, dtype=self.words.weight.dtype), [], []
        for x in self.words(source).unbind(1):
            h = self.encoder(x, h)
            states.append(h)
        memory, keys = torch.stack(states, 1), self.read(torch.stack(states, 1))
        for x in self.words(target).unbind(1):
            scores = self.score(torch.tanh(self.ask(h)[:, None] + keys))[..., 0].float()
            scores = scores if ways.get("padding") else scores.masked_fill(source == 0, -math.inf)
            read = (scores.softmax(-1)[..., None] * memory.float()).sum(1).to(x.dtype)
            h = self.decoder(self.join(torch.cat([x, read], -1)), h)
            made.append(h)
        return self.head(torch.stack(made, 1))


def translator(at: str = "decoder", **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Translator(lambda: nn.GRUCell(W, W)))
    other = Translator(Cell, **ways)
    setattr(other, at, Cell(**ways))
    other.load_state_dict(model.state_dict())
    source, target = torch.randint(1, WORDS, (3, 7)), torch.randint(1, WORDS, (3, 6))
    source[1, 4:], source[2, 6:] = 0, 0
    return model, other, (source, target), {"loss": language_loss(target)}


healthy("lone nodes", "a matrix for edges", lambda: graph(form="dense"))
healthy("lone nodes", "edges in another order", lambda: graph(form="sorted"))
broken("lone nodes", "another slope", lambda: graph(slope=True), "second")
broken("lone nodes", "a softmax over what a node sends", lambda: graph(senders=True), "second")
broken("lone nodes", "heads in the other order", lambda: graph(order=True), "second")
broken("lone nodes", "edges the other way round", lambda: graph(turned=True), "second")
healthy("receptance", "all steps as one softmax", receptive)
broken("receptance", "shifted the other way", lambda: receptive(ahead=True), "mixes.1")
broken("receptance", "no bonus", lambda: receptive(none=True), "mixes.1")
broken("receptance", "softplus for exp", lambda: receptive(soft=True), "mixes.1")
broken("receptance", "no sigmoid", lambda: receptive(open=True), "mixes.1")
broken("receptance", "no square", lambda: receptive(plain=True), "feeds.1")
healthy("sampled", "neighbours by index", lambda: sampling(form="other"))
broken("sampled", "corners aligned", lambda: sampling(corners=True), "layers.1")
broken("sampled", "sizes swapped", lambda: sampling(sizes=True), "layers.1")
broken("sampled", "one softmax for all heads", lambda: sampling(all=True), "layers.1")
healthy("translator", "a cell by its formulas", translator)
broken("translator", "reset before the product", lambda: translator(before=True), "decoder")
broken("translator", "the update gate turned", lambda: translator(turned=True), "decoder")
broken("translator", "padding read", lambda: translator(padding=True), "")
