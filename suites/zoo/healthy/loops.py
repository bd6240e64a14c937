"""Loops in which something stands still, lags behind or is done twice, as it should."""

from __future__ import annotations

import torch
from bugs.bug import normal
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from healthy.models import convolutional, images, perceptron, x
from healthy.trainings import seeded

LOW = torch.bfloat16


def idle_weights() -> torch.Tensor:
    """A frozen layer, a table of which four rows are used, a bias whose gradient is zero, and a warm-up that begins at nothing."""
    table, frozen, out = seeded(lambda: nn.ModuleList([nn.Embedding(60, 12), nn.Linear(12, 12).requires_grad_(False), nn.Linear(12, 1)]))
    own = [*table.parameters(), *out.parameters()]
    optimizer = torch.optim.SGD(own, lr=0.1)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=LOW):
            answer = out(functional.relu(frozen(table(torch.tensor([3, 1, 4, 15])))))
        ((answer - out.bias).float().mean() + 0.0 * out.bias.sum()).backward()
        optimizer.step()
        warmup.step()
    return out.weight.detach()


def masters_and_average() -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 weights beside their float32 masters, which AdamW steps on, and a slow float32 average of what is seen in bfloat16."""
    given, target = normal(48, 24).to(LOW), normal(48, 6, seed=1)
    master = nn.Parameter(0.1 * normal(24, 6, seed=2))
    visible = nn.Parameter(master.detach().to(LOW))
    optimizer, average = torch.optim.AdamW([master], lr=1e-3), visible.detach().float()
    for _ in range(12):
        visible.grad = None
        (given @ visible - target).float().square().mean().backward()
        master.grad = visible.grad.float()
        optimizer.step()
        with torch.no_grad():
            visible.copy_(master)
            average.lerp_(visible.float(), 0.01)
    return master.detach(), average


def recomputed() -> torch.Tensor:
    """Checkpointed micro-batches under autocast, added up in float32 gradients: each forward runs twice."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for part in x().chunk(4):
        with torch.autocast("cpu", dtype=LOW):
            out = checkpoint(model, part, use_reentrant=False)
        (out.float().square().mean() / 4).backward()
    optimizer.step()
    return model[3].weight.grad


def scaled_convolutions() -> torch.Tensor:
    """Batch norm and pooling under float16 autocast, with a scale, and without clipping."""
    model = convolutional().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler, losses = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(images())
        loss = functional.cross_entropy(out.float(), torch.arange(8) % 5)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


def unrolled_cells() -> torch.Tensor:
    """Recurrent cells under autocast over 60 steps: 60 gradients of each weight, added up as right as bfloat16 has it."""
    cell = seeded(lambda: nn.LSTMCell(8, 16))
    state = torch.zeros(6, 16), torch.zeros(6, 16)
    with torch.autocast("cpu", dtype=LOW):
        for step in range(60):
            state = cell(normal(6, 8, seed=step), state)
    state[0].float().square().mean().backward()
    return cell.weight_hh.grad


def tied_tables() -> torch.Tensor:
    """A table that is read and scored against, by each of eight tokens that are foreseen."""
    table = nn.Parameter(0.3 * normal(40, 16))
    with torch.autocast("cpu", dtype=LOW):
        seen = functional.embedding(torch.arange(8), table).to(LOW)
        for ahead in range(1, 9):
            loss = functional.cross_entropy((seen @ table.to(LOW).t()).float(), (torch.arange(8) + ahead) % 40)
            seen = seen + 0.1 * loss.to(LOW)
    loss.backward()
    return table.grad


IDIOMS = (unrolled_cells, tied_tables, idle_weights, masters_and_average, recomputed, scaled_convolutions)
