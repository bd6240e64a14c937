"""Training steps and what is kept between them: accumulated gradients, optimizers, policies, adapters that are loaded again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

LOW, WIDE, TINY = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def network(*sizes: int) -> nn.Sequential:
    """Linear layers with GELUs between them, and weights of their own seeds."""
    model = nn.Sequential()
    for place, (narrow, broad) in enumerate(itertools.pairwise(sizes)):
        layer = nn.Linear(narrow, broad)
        nn.init.zeros_(layer.bias)
        with torch.no_grad():
            layer.weight.copy_(normal(broad, narrow, seed=100 + place) / narrow**0.5)
        model.extend([layer, nn.GELU()])
    return model[:-1]


def accumulated(wide: bool) -> list[torch.Tensor]:
    """The gradient of 220 micro-batches on bfloat16 weights, in buffers that are made like the weights, and clipped by its norm."""
    model = network(12, 16, 3).to(LOW)
    buffers = [torch.zeros_like(weight, dtype=WIDE if wide else None) for weight in model.parameters()]
    for micro in range(220):
        x = normal(4, 12, seed=micro)
        target = torch.stack([x[:, 0] * 2 + 1, x[:, 1].abs(), x[:, 2] - x[:, 3]], -1)
        loss = functional.mse_loss(model(x.to(LOW)).float(), target) / 220
        for buffer, gradient in zip(buffers, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            buffer += gradient  # culprit: micro-batches
    norm = torch.stack([buffer.float().norm() for buffer in buffers]).norm()
    return [buffer.float() * (1.0 / norm).clamp(max=1.0) for buffer in buffers]


class AdamMini(torch.optim.Optimizer):
    """Adam with one second moment for each row of a weight."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, masters: bool) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8})
        self.masters = masters

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state.update(step=0, m=torch.zeros_like(weight, dtype=WIDE), v=torch.zeros(len(weight)))
                    state["master"] = weight.float() if self.masters else None
                state["step"] += 1
                gradient = weight.grad.float()
                state["m"].lerp_(gradient, 1 - first)
                state["v"].lerp_(gradient.square().reshape(len(weight), -1).mean(-1), 1 - second)
                spread = (state["v"] / (1 - second ** state["step"])).sqrt() + group["eps"]
                update = state["m"] / (1 - first ** state["step"]) / spread.view(-1, *[1] * (weight.dim() - 1))
                if self.masters:
                    state["master"].add_(update, alpha=-group["lr"])
                    weight.copy_(state["master"])
                else:
                    weight.add_(update.to(weight.dtype), alpha=-group["lr"])  # culprit: mini-updates


def finetuned(masters: bool) -> torch.Tensor:
    """The losses of forty steps of fine-tuning in bfloat16 alone, at a rate of 3e-4."""
    model = network(16, 48, 1).to(LOW)
    optimizer, losses = AdamMini(model.parameters(), lr=3e-4, masters=masters), []
    x = normal(64, 16)
    target = (x @ normal(16, 1, seed=1)).tanh() + 1
    for _ in range(40):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x.to(LOW)).float(), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses[20:])


def soap(wide: bool) -> torch.Tensor:
    """Thirty steps of SOAP: Adam in the basis of the two factors' eigenvectors, and the factors are kept in the weight's format."""
    weight = (0.1 * normal(12, 8)).to(LOW)
    left, right = (torch.zeros(size, size, dtype=WIDE if wide else weight.dtype) for size in weight.shape)
    master, mean, square = weight.float(), torch.zeros(12, 8), torch.zeros(12, 8)
    rows, columns = torch.linalg.qr(normal(12, 12, seed=1)).Q, torch.linalg.qr(normal(8, 8, seed=2)).Q
    steep = torch.logspace(0, -1.6, 12)[:, None] * torch.logspace(0, -1.0, 8)
    for step in range(1, 31):
        gradient = (rows @ (steep * (0.5 + normal(12, 8, seed=step))) @ columns).to(LOW)
        left.lerp_((gradient.float() @ gradient.float().T).to(left.dtype), 0.05)  # culprit: soap-factors
        right.lerp_((gradient.float().T @ gradient.float()).to(right.dtype), 0.05)  # culprit: soap-factors
        u, v = (torch.linalg.eigh(factor.float()).eigenvectors for factor in (left, right))
        mean.lerp_(gradient.float(), 0.05)
        square.lerp_((u.T @ gradient.float() @ v).square(), 0.05)
        update = (u.T @ mean @ v) / (square.sqrt() + 1e-8)
        master -= 3e-3 * u @ update @ v.T
        weight.copy_(master)
    return master


def policy_step(wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Six answers' ratios of a policy to the one that gave them, as sums over forty tokens, and the clipped loss."""
    hidden, head = (normal(6, 40, 16) / 8).to(LOW), (0.4 * normal(8192, 16, seed=1)).to(LOW)
    moved = (head.float() + 0.02 * normal(8192, 16, seed=2)).to(LOW)
    tokens, sums = torch.arange(240).view(6, 40, 1) * 31 % 8192, []
    for policy in (moved, head):
        logits = hidden @ policy.T
        log_probs = functional.log_softmax(logits.float() if wide else logits, -1)  # culprit: sequence-ratio
        sums.append(log_probs.gather(-1, tokens).squeeze(-1).float().sum(-1))
    ratio = (sums[0] - sums[1]).exp()  # culprit: sequence-ratio
    advantage = torch.tensor([1.0, -1.0, 0.5, 2.0, -0.5, -2.0])
    return ratio, torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter; the layer is stored in eight bits and widened when it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(24, 24, bias=False), nn.Linear(24, 4, bias=False), nn.Linear(4, 24, bias=False)
        self.base.weight.requires_grad_(False).copy_(0.2 * normal(24, 24, seed=3))
        with torch.no_grad():
            self.down.weight.copy_(0.2 * normal(4, 24, seed=4))
            self.up.weight.zero_()

    def stored_low(self, skipped: tuple[str, ...]) -> Adapted:
        for name, layer in self.named_children():
            if name not in skipped:
                layer.weight.data = layer.weight.data.to(TINY)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        base, down, up = (layer.weight.to(x.dtype) for layer in (self.base, self.down, self.up))
        return x @ base.T + x @ down.T @ up.T


def resumed(skipped: tuple[str, ...]) -> torch.Tensor:
    """What an adapter adds after it was trained, saved, and loaded into a model whose layers are stored in eight bits."""
    model, x = Adapted().stored_low(("down", "up")), normal(32, 24)
    optimizer = torch.optim.AdamW([model.down.weight, model.up.weight], lr=1e-4)
    for _ in range(12):
        optimizer.zero_grad()
        functional.mse_loss(model(x), x @ normal(24, 24, seed=5) / 5).backward()
        optimizer.step()
    saved = {name: weight.clone() for name, weight in model.state_dict().items()}
    again = Adapted().stored_low(skipped)
    again.load_state_dict(saved)  # culprit: resumed-adapter
    return again(x) - x @ again.base.weight.to(x.dtype).T


BUGS = (
    Bug("micro-batches", "mlnomadpy/flaxchat#6", ("accumulated-drift", "absorption"), "aten.add_.Tensor", lambda: accumulated(False),
        lambda: accumulated(True)),
    Bug("mini-updates", "zyushun/Adam-mini#26", ("lost-update", "absorption"), "", lambda: finetuned(False), lambda: finetuned(True),
        phase="optimizer", module="0"),
    Bug("soap-factors", "kozistr/pytorch_optimizer#335", ("amplified-rounding", "absorption", "accumulated-drift"), "aten._to_copy.default",
        lambda: soap(False), lambda: soap(True)),
    Bug("sequence-ratio", "billy-enrizky/openbrowser-ai#63", ("amplified-rounding", "cancellation"), "aten._log_softmax.default",
        lambda: policy_step(False), lambda: policy_step(True)),
    Bug("resumed-adapter", "huggingface/finetrainers#246", ("underflow", "lost-update", "local-drift"), "aten.copy_.default",
        lambda: resumed(()), lambda: resumed(("down", "up")), phase="data", step=13),
)  # fmt: skip
