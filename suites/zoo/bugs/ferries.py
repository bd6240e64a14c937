"""Ferries: gradients cut or punished before they are unscaled, losses told while they gather, parts that do not agree in their format."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW = torch.float16, torch.bfloat16


class Perceptron(nn.Module):
    """Two layers, from numbers to scores."""

    def __init__(self, size: int, inner: int, out: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.hidden, self.head = nn.Linear(size, inner), nn.Linear(inner, out)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(functional.silu(self.hidden(inputs)))


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten().clone() for each in model.parameters()])


def half_taught(unscaled: bool, most: float = 1.0) -> torch.Tensor:
    """How far a learner goes in six steps on labelled pictures, and on others that it labels itself. Hardly anywhere."""
    model = Perceptron(16, 24, 5, seed=1001)
    start, optimizer = flat(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8192.0)
    for turn in range(6):
        labelled, labels = normal(8, 16, seed=1002 + turn), (5 * uniform(8, seed=1012 + turn)).long()
        weak = normal(24, 16, seed=1022 + turn)
        strong = weak + 0.3 * normal(24, 16, seed=1032 + turn)
        with torch.autocast("cpu", HALF):
            scores = model(torch.cat([labelled, weak, strong]))
            known, guessed, told = scores.float().split([8, 24, 24])
            sure, taken = torch.softmax(guessed.detach(), -1).max(-1)
            loss = functional.cross_entropy(known, labels)
            loss = loss + (functional.cross_entropy(told, taken, reduction="none") * (sure > 0.3)).mean()
        scaler.scale(loss).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), most)  # culprit: half-taught-learner
        scaler.step(optimizer)  # culprit: half-taught-learner
        scaler.update()
        optimizer.zero_grad()
    return flat(model) - start


def cut_by_weight(parameters: list[nn.Parameter], share: float = 0.02) -> None:
    """Cuts each unit's gradient to a share of the size of the unit's weights."""
    for weight in parameters:
        if weight.grad is None:
            continue
        most = share * weight.detach().norm(dim=-1, keepdim=True).clamp_min(1e-3)
        size = weight.grad.norm(dim=-1, keepdim=True)
        cut = weight.grad * (most / size.clamp_min(1e-6))  # culprit: cut-by-the-size-of-a-weight
        weight.grad.copy_(torch.where(size > most, cut, weight.grad))  # culprit: cut-by-the-size-of-a-weight


def accumulated(unscaled: bool) -> torch.Tensor:
    """How far a network goes in five steps of four parts, its gradients being cut by the size of its weights."""
    model = Perceptron(12, 20, 3, seed=1041)
    start, optimizer = flat(model), torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for turn in range(5):
        for part in range(4):
            with torch.autocast("cpu", HALF):
                told = model(normal(8, 12, seed=1042 + 4 * turn + part))
            scaler.scale(functional.mse_loss(told.float(), normal(8, 3, seed=1072 + 4 * turn + part)) / 4).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        cut_by_weight(list(model.parameters()))  # culprit: cut-by-the-size-of-a-weight
        scaler.step(optimizer)  # culprit: cut-by-the-size-of-a-weight
        scaler.update()
        optimizer.zero_grad()
    return flat(model) - start


def punished(unscaled: bool) -> torch.Tensor:
    """The penalties on a judge's gradient in five steps. They should be about one, and are a million."""
    judge, told = Perceptron(16, 24, 1, seed=1101), []
    optimizer = torch.optim.Adam(judge.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for turn in range(5):
        real = normal(12, 16, seed=1102 + turn).requires_grad_()
        made = 0.5 * normal(12, 16, seed=1112 + turn)
        with torch.autocast("cpu", HALF):
            said, other = judge(real), judge(made)
        hinge = functional.relu(1 - said.float()).mean() + functional.relu(1 + other.float()).mean()
        (slope,) = torch.autograd.grad(scaler.scale(said.float().sum()), real, create_graph=True)
        if unscaled:
            slope = slope / scaler.get_scale()
        penalty = 10 * (slope.norm(2, dim=1) - 1).pow(2).mean()  # culprit: penalty-on-a-judge
        scaler.scale(hinge + penalty).backward()  # culprit: penalty-on-a-judge
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        told.append(penalty.item())  # culprit: penalty-on-a-judge
    return torch.tensor(told)


class Learner:
    """Trains with hooks: one scales the loss and scales it back, another gathers gradients and ends a batch early."""

    def __init__(self, gathered: int, in_time: bool) -> None:
        self.model = Perceptron(10, 16, 2, seed=1121)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
        self.gathered, self.in_time, self.seen = gathered, in_time, 0

    def one_batch(self, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", HALF):
            told = self.model(inputs)
        loss = plain = functional.mse_loss(told.float(), wanted)
        loss = self.scaler.scale(loss)
        loss.backward()
        self.seen += 1
        if self.seen % self.gathered:
            return plain if self.in_time else loss  # culprit: loss-of-a-gathering-learner
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return plain


def told_by_a_learner(in_time: bool) -> torch.Tensor:
    """The losses of eight batches in a learner's table. Three in four are two thousand times too large."""
    learner, log = Learner(4, in_time), []
    for turn in range(8):
        loss = learner.one_batch(normal(16, 10, seed=1122 + turn), normal(16, 2, seed=1132 + turn))
        log.append(loss.item())  # culprit: loss-of-a-gathering-learner
    return torch.tensor(log)


class Recorder:
    """Keeps what goes into attention, for an optimizer that looks at it."""

    def __init__(self, layer: nn.Module) -> None:
        self.inputs: list[torch.Tensor] = []
        layer.register_forward_hook(lambda _, inputs, __: self.inputs.append(inputs[0].detach()))


def capped(same: bool) -> torch.Tensor:
    """The largest score of each head after a step of an optimizer that keeps weights in float32. torch refuses it."""
    torch.manual_seed(1141)
    layer = nn.Linear(32, 64, bias=False).to(LOW)
    recorder, words = Recorder(layer), normal(20, 32, seed=1142).to(LOW)
    layer(words).float().pow(2).mean().backward()
    with torch.no_grad():
        weight, slope = layer.weight.float(), layer.weight.grad.float()
        weight = weight - 0.02 * slope / slope.norm()
        seen = recorder.inputs[-1].float() if same else recorder.inputs[-1]
        query, key = (seen @ weight.T).chunk(2, -1)  # culprit: inputs-that-were-kept
        return (query @ key.T).amax(-1)


def engine(batch: dict[str, torch.Tensor], careful: bool) -> dict[str, torch.Tensor]:
    """Brings a batch into the format that the model computes in."""
    if careful:
        return {name: value.to(LOW) if value.is_floating_point() else value for name, value in batch.items()}
    return {name: value.to(LOW) for name, value in batch.items()}  # culprit: words-in-the-models-format


def embedded(careful: bool) -> torch.Tensor:
    """What a model reads where a batch holds words of a large vocabulary. Other words."""
    torch.manual_seed(1151)
    table = nn.Embedding(3000, 24).to(LOW)
    batch = {"words": (3000 * uniform(2, 30, seed=1152)).long(), "weights": uniform(2, 30, seed=1153)}
    batch = engine(batch, careful)
    with torch.no_grad():
        return wider(table(batch["words"].long()) * batch["weights"][..., None])  # culprit: words-in-the-models-format


BUGS = (
    Bug("half-taught-learner", "TorchSSL/TorchSSL#59", ("scaler-order",), "aten.clamp.default",
        lambda: half_taught(unscaled=False), lambda: half_taught(unscaled=True), phase="scaler"),
    Bug("cut-by-the-size-of-a-weight", "andreped/GradientAccumulator#19", ("scaler-order",), "aten.gt.Tensor",
        lambda: accumulated(unscaled=False), lambda: accumulated(unscaled=True), phase="scaler"),
    Bug("penalty-on-a-judge", "lucidrains/stylegan2-pytorch#103", ("scaler-order",), "aten.sub.Tensor",
        lambda: punished(unscaled=False), lambda: punished(unscaled=True), phase="scaler"),
    Bug("loss-of-a-gathering-learner", "fastai/fastai#3048", ("scaler-order",), "aten._local_scalar_dense.default",
        lambda: told_by_a_learner(in_time=False), lambda: told_by_a_learner(in_time=True), phase="scaler", severity="warning"),
    Bug("inputs-that-were-kept", "GAD-cell/muon-clip#9", ("dtype-leak",), "aten.mm.default",
        lambda: capped(same=False), lambda: capped(same=True), phase="data", raises=RuntimeError),
    Bug("words-in-the-models-format", "huu4ontocord/MDEL#44", ("integer-rounding", "decision-flip"), "aten._to_copy.default",
        lambda: embedded(careful=False), lambda: embedded(careful=True)),
)  # fmt: skip
