"""A contestant's step is the plain one, bit for bit, every time from the same start; and the user's model comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from precheck.measurement import job_of
from precheck.observe.job import Job
from precheck.observe.timing.contestant import Contestant, borrowed
from precheck.precisions import resolve


class Net(nn.Module):
    """With all that a run may change: running statistics, dropout, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.drop, self.calls = nn.Dropout(0.5), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.last(self.drop(self.norm(self.first(x)).relu()))
        return out


@pytest.fixture
def net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net()


X = torch.linspace(-1, 1, 48).view(6, 8)


def adamw(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-2, eps=1e-4)  # the default of 1e-8 is zero in float16


def job(model: nn.Module, **given: Any) -> Job:
    settings = {"loss": lambda out: out.float().square().mean(), "optimizer": lambda params: adamw(params), **given}
    return job_of(model, X, seed=3, **settings)


def plain(precision: str) -> dict[str, torch.Tensor]:
    """One step as torch's documentation has it."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Net()
    chosen = resolve(precision)
    model.to(chosen.param_dtype)
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()] if chosen.master else list(model.parameters())
    optimizer, scaler = adamw(masters), torch.amp.GradScaler("cpu", enabled=chosen.scaler)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=chosen.compute_dtype, enabled=chosen.autocasts):
            loss = model(X.to(chosen.param_dtype)).float().square().mean()
        scaler.scale(loss).backward()
        if chosen.master:
            for master, param in zip(masters, model.parameters(), strict=True):
                master.grad = None if param.grad is None else param.grad.float()
        scaler.step(optimizer)
        scaler.update()
        if chosen.master:
            with torch.no_grad():
                for master, param in zip(masters, model.parameters(), strict=True):
                    param.copy_(master)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def stepped(contestant: Contestant) -> dict[str, torch.Tensor]:
    with contestant.placed():
        contestant.step()
        return {name: value.detach().clone() for name, value in contestant.job.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true", "bf16-master", "16-mixed", "16-true"])
def test_its_first_step_is_the_plain_one_bit_for_bit(net: Net, precision: str) -> None:
    with borrowed(job(net)):
        assert same(stepped(Contestant(job(net), resolve(precision))), plain(precision))


def test_every_step_starts_where_the_first_did_whoever_stepped_in_between(net: Net) -> None:
    given = job(net, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
    with borrowed(given):
        ours, other = Contestant(given, resolve("bf16-true")), Contestant(given, resolve("32-true"))
        first = stepped(ours)
        stepped(other)
        stepped(other)
        assert same(stepped(ours), first)
        assert not same(stepped(other), first)


@pytest.mark.parametrize("fails", [False, True])
def test_the_users_model_comes_back(net: Net, fails: bool) -> None:
    net.eval()
    net.first.weight.grad = torch.ones_like(net.first.weight)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    storage, state = net.first.weight.data_ptr(), torch.get_rng_state()

    def take() -> None:
        with borrowed(job(net)):
            stepped(Contestant(job(net), resolve("bf16-true")))
            if fails:
                raise KeyError("a user's interruption")

    if fails:
        with pytest.raises(KeyError):
            take()
    else:
        take()
    assert same(before, dict(net.state_dict()))
    assert (net.first.weight.data_ptr(), net.calls, net.training) == (storage, 0, False)
    assert torch.equal(net.first.weight.grad, torch.ones_like(net.first.weight))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("precision", "held"),
    [
        # 8 × 8 weights and 8 biases; AdamW's two moments of each, and a count of 4 bytes for either tensor; inputs of 6 × 8
        ("32-true", 72 * 4 * 3 + 8 + 48 * 4),
        ("bf16-mixed", 72 * 4 * 3 + 8 + 48 * 4),
        ("bf16-true", 72 * 2 * 3 + 8 + 48 * 2),
        ("bf16-master", 72 * 2 + 72 * 4 * 3 + 8 + 48 * 2),
    ],
)
def test_what_stays_from_step_to_step_is_counted_to_the_byte(precision: str, held: int) -> None:
    model = nn.Linear(8, 8)
    with borrowed(job(model)):
        contestant = Contestant(job(model), resolve(precision))
        stepped(contestant)
        assert contestant.held == held


def test_without_a_loss_nothing_is_kept_for_a_backward(net: Net) -> None:
    seen: list[bool] = []
    net.last.register_forward_hook(lambda module, args, out: seen.append(out.requires_grad))
    given = job_of(net, X)
    with borrowed(given):
        stepped(Contestant(given, resolve("bf16-mixed")))
    assert seen == [False]


def test_a_loss_scale_that_is_too_large_is_told_until_it_fits() -> None:
    """float16's largest number is 65504, and a gradient of 2**10 under the scale that GradScaler begins with, 2**16, is 2**26."""
    model = nn.Linear(1, 1)
    given = job_of(model, torch.ones(1, 1), loss=lambda out: 1024 * out.sum(), optimizer=lambda params: torch.optim.SGD(params, lr=1e-3))
    with borrowed(given):
        contestant = Contestant(given, resolve("16-mixed"))
        tries = [contestant.calibrated() for _ in range(12)]
    assert tries == [False] * 11 + [True]


@pytest.mark.parametrize(("precision", "emulated"), [("tf32", True), ("fp8-e4m3-mixed", True), ("bf16-mixed", False)])
def test_it_knows_what_a_cpu_only_imitates(precision: str, emulated: bool) -> None:
    given = job(nn.Linear(8, 8))
    with borrowed(given):
        assert Contestant(given, resolve(precision)).emulated is emulated


@pytest.mark.parametrize(("capability", "emulated"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_tf32_is_a_devices_own_since_ampere(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], emulated: bool) -> None:
    given = job(nn.Linear(8, 8))
    with borrowed(given):
        contestant = Contestant(given, resolve("tf32"))
    monkeypatch.setattr(Job, "device", property(lambda self: "cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert contestant.emulated is emulated


def test_modules_that_are_kept_in_float32_stay_so(net: Net) -> None:
    import precheck

    precheck.in_float32(net, ["last"])
    seen: list[torch.dtype] = []
    net.last.register_forward_hook(lambda module, args, out: seen.append(module.weight.dtype))
    with borrowed(job(net)):
        stepped(Contestant(job(net), resolve("bf16-true")))
    assert seen == [torch.float32]
