"""Loops under Accelerate with settings that few use."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from training import Left, Low, data, network, square, training

SAID = {"bf16-mixed": "bf16", "16-mixed": "fp16", "bf16-true": "no"}
"""On a CPU Accelerate has no float16 autocast: fp16 is float32 there."""


def accelerator(low: Low, **options: Any) -> Any:
    import accelerate

    accelerate.state.AcceleratorState._reset_state(True)
    return accelerate.Accelerator(mixed_precision=SAID[low.precision], cpu=True, **options)


def loader(low: Low, size: int = 8) -> Any:
    x, y = data(32)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(low.cast(x), y), batch_size=size)


@training("accelerate")
def accumulated_and_clipped(low: Low) -> Left:
    own, model = accelerator(low, gradient_accumulation_steps=2), low.cast(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    prepared, optimizer, batches, schedule = own.prepare(model, optimizer, loader(low), torch.optim.lr_scheduler.LinearLR(optimizer))
    for x, y in batches:
        with own.accumulate(prepared):
            own.backward(cross_entropy(prepared(x).float(), y))
            if own.sync_gradients:
                own.clip_grad_value_(prepared.parameters(), 0.05)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return Left(own.unwrap_model(prepared), {}, (prepared, low.cast(data()[0])), {"loss": square})


@training("accelerate")
def teacher_and_pupil(low: Low) -> Left:
    """Two models and two optimizers, and a third model that only teaches."""
    own, teacher, pupil, head = accelerator(low), low.cast(network()), low.cast(network()), low.cast(nn.Linear(4, 4))
    first, second = torch.optim.SGD(pupil.parameters(), lr=0.1), torch.optim.AdamW(head.parameters(), lr=1e-2)
    teacher, pupil, head, first, second, batches = own.prepare(teacher, pupil, head, first, second, loader(low))
    teacher.eval()
    for x, y in batches:
        with torch.no_grad():
            aim = teacher(x).float().softmax(-1)
        out = pupil(x)
        loss = kl_div(out.float().log_softmax(-1), aim, reduction="batchmean") + cross_entropy(head(out).float(), y)
        own.backward(loss)
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    return Left(nn.ModuleList([own.unwrap_model(pupil), own.unwrap_model(head)]), {"loss": loss}, (own.unwrap_model(pupil), low.cast(data()[0])))


@training("accelerate")
def contexts_of_autocast(low: Low) -> Left:
    """The loss outside autocast, one layer outside too."""
    from accelerate.utils import AutocastKwargs

    own, model = accelerator(low), low.cast(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer, batches = own.prepare(optimizer, loader(low))
    for x, y in batches:
        with own.autocast():
            out = model[:3](x)
            with own.autocast(autocast_handler=AutocastKwargs(enabled=False)):
                out = model[3](out.to(model[3].weight.dtype))
        own.backward(cross_entropy(out.float(), y))
        optimizer.step()
        optimizer.zero_grad()
    return Left(model, {"out": out})


@training("accelerate")
def weights_that_are_offloaded(low: Low) -> Left:
    """Hooks fetch each module's weights when it is called."""
    import accelerate

    model = low.cast(network())
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    accelerate.cpu_offload(model, execution_device="cpu")
    with low.autocast(), torch.no_grad():
        out = model(low.cast(data()[0]))
    return Left(None, {"out": out, **kept})


@training("accelerate")
def local_sgd(low: Low) -> Left:
    from accelerate.local_sgd import LocalSGD

    own, model = accelerator(low), low.cast(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = own.prepare(model, optimizer, loader(low))
    with LocalSGD(accelerator=own, model=model, local_sgd_steps=2, enabled=True) as local:
        for x, y in batches:
            own.backward(cross_entropy(model(x).float(), y))
            optimizer.step()
            optimizer.zero_grad()
            local.step()
    return Left(own.unwrap_model(model), {}, (model, low.cast(data()[0])))


@training("accelerate")
def compiled(low: Low) -> Left:
    import accelerate

    accelerate.state.AcceleratorState._reset_state(True)
    plugin = accelerate.utils.TorchDynamoPlugin(backend="eager")
    own = accelerate.Accelerator(mixed_precision=SAID[low.precision], cpu=True, dynamo_plugin=plugin)
    model = low.cast(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    prepared, optimizer, batches = own.prepare(model, optimizer, loader(low))
    for x, y in batches:
        own.backward(cross_entropy(prepared(x).float(), y))
        optimizer.step()
        optimizer.zero_grad()
    return Left(model, {}, (model, low.cast(data()[0])))


@training("accelerate", ("bf16-true",))
def float32_weights_of_the_optimizer(low: Low) -> Left:
    """As DeepSpeed's bf16 optimizer has it: one flat float32 copy of the weights, and float32 sums of gradients over four small batches."""
    own, model = accelerator(low, gradient_accumulation_steps=1), low.cast(network())
    weights = list(model.parameters())
    flat = nn.Parameter(torch.cat([each.detach().float().flatten() for each in weights]))
    flat.grad = torch.zeros_like(flat)
    optimizer = torch.optim.AdamW([flat], lr=1e-3)
    model, batches = own.prepare(model, loader(low, 4))
    for index, (x, y) in enumerate(batches):
        own.backward(cross_entropy(model(x).float(), y) / 4)
        flat.grad += torch.cat([each.grad.float().flatten() for each in weights])
        for each in weights:
            each.grad = None
        if index % 4 == 3:
            nn.utils.clip_grad_norm_([flat], 1.0)
            optimizer.step()
            flat.grad.zero_()
            for each, part in zip(weights, flat.detach().split([each.numel() for each in weights]), strict=True):
                each.data.copy_(part.view_as(each))
    return Left(model, {"flat": flat}, (model, low.cast(data()[0])))
