"""`precheck.vary`: a model asked in ways that should not matter, and the faults by which they do."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from chat import Chat, tokens
from decoder import decoder
from torch import nn

import precheck

WAYS = ("repeat", "order", "batch", "padding", "cache", "prefill", "position", "threads", "checkpointing", "dropout", "packing", "ranks")


def mean(out: Any) -> torch.Tensor:
    return out.logits.float().square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_healthy_model_may_be_asked_in_any_way(precision: str) -> None:
    report = precheck.vary(Chat(), {"input_ids": tokens(4)}, WAYS, precision=precision, loss=mean)
    assert not report.errors, report.summary()
    assert set(report.facts["variations"].values()) <= {"bitwise", "rounding"}
    assert len(report.facts["variations"]) == len(WAYS) + 1  # padding is to the left and to the right
    assert report.facts["variations"]["repeat"] == "bitwise"
    assert report.facts["tokens"]["repeat"]["greatest"] == 0
    assert precision != "32-true" or all(each["greatest"] < 1e-4 and each["outside"] == 0 for each in report.facts["tokens"].values())


@pytest.mark.parametrize(
    ("fault", "over", "where"),
    [
        ("position", "cache", "left out"),
        ("stale", "cache", "layers.1"),
        ("mask", "padding", "layers.0"),
        ("batch", "batch", "layers.1"),
        ("batch", "order", None),
        ("packed", "packing", "left out"),
    ],
)
def test_a_fault_shows_where_it_is_asked_for(fault: str, over: str, where: str | None) -> None:
    report = precheck.vary(Chat(fault).eval(), {"input_ids": tokens()}, (over, "repeat"), loss=mean)
    if where is None:  # a mean over the batch is the same in any order
        assert not report.errors
        return
    assert report.verdict == "different"
    assert report.errors[0].message.startswith({"padding": "left padding by 3: ", "packing": "3 rows packed into one: "}.get(over, over))
    if where != "left out":
        assert report.errors[0].module == where
        assert re.search(r"suites/pairs/chat\.py:\d+", report.errors[0].source)
    assert report.facts["variations"]["repeat"] == "bitwise"
    spread = next(each for name, each in report.facts["tokens"].items() if name.startswith((over, "left", "3 rows")))
    assert spread["greatest"] > 1e-4
    assert "nats in the mean" in report.errors[0].message


def test_where_bits_part_is_named() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 7))
    report = precheck.vary(net, torch.randn(33, 64), {"batch": 1})
    if report.verdict == "rounding":  # which kernels a CPU takes for one row is its own affair
        assert report.findings[0].module in ("0", "2")
        assert "bits first differ in" in report.findings[0].message
        assert report.findings[0].op == "aten.addmm"
    assert not report.errors


def test_microbatches_are_weighted_as_the_loss_says() -> None:
    net, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), torch.randn(7, 8)
    means: dict[str, Any] = {"loss": lambda out: out.square().mean()}
    sums: dict[str, Any] = {"loss": lambda out: out.square().sum()}
    assert not precheck.vary(net, x, ("microbatches",), **means).errors
    assert not precheck.vary(net, x, {"microbatches": 3}, reduction="sum", **sums).errors
    wrong = precheck.vary(net, x, ("microbatches",), reduction="sum", **means)
    assert wrong.verdict == "different"
    assert "model's gradients" not in wrong.summary()

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.inner(x), labels, ignore_index=-100)

    labels = torch.tensor([0, 1, 2, -100, -100, -100, 1])
    given = {"x": x, "labels": labels}
    by_rows = precheck.vary(Padded(), given, ("microbatches",), loss=lambda out: out)
    by_tokens = precheck.vary(Padded(), given, ("microbatches",), loss=lambda out: out, reduction=lambda inputs: int((inputs["labels"] >= 0).sum()))
    assert by_rows.verdict == "different"  # the mean of means is not the mean over what is no padding
    assert not by_tokens.errors


@dataclasses.dataclass
class Later:
    logits: torch.Tensor
    cache: Any


class NamedAnew(Chat):
    """As transformers name things since 5.24."""

    def forward(self, input_ids: torch.Tensor, cache: Any = None, use_cache: bool = False, **more: Any) -> Any:  # type: ignore[override]
        out = super().forward(input_ids, past_key_values=cache, use_cache=use_cache, **more)
        return Later(out.logits, out.past_key_values)


@pytest.mark.parametrize("fault", ["", "stale"])
def test_a_cache_has_another_name_in_later_releases(fault: str) -> None:
    assert bool(precheck.vary(NamedAnew(fault).eval(), tokens(), ("cache", "prefill")).errors) is bool(fault)


def test_a_step_of_ones_own_decodes_where_there_is_no_past() -> None:
    model, given = decoder(), tokens(2, 6)

    def again(model: Any, piece: torch.Tensor, state: torch.Tensor | None) -> tuple[Any, torch.Tensor]:
        state = piece if state is None else torch.cat([state, piece], 1)
        return model(state)[:, -piece.shape[1] :], state

    assert not precheck.vary(model, given, ("cache", "prefill"), step=again).errors

    def forgetful(model: Any, piece: torch.Tensor, state: torch.Tensor | None) -> tuple[Any, torch.Tensor]:
        return model(piece), piece

    assert precheck.vary(model, given, ("cache",), step=forgetful).verdict == "different"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"over": ("batches",)}, "there is no variation 'batches'; do you mean batch?"),
        ({"over": {"padding": 0}}, "padding takes a whole number from 1, not 0"),
        ({"over": 3}, "over=3; pass names"),
        ({"over": ("microbatches",)}, "microbatches need a loss"),
        ({"over": ("cache",), "model": decoder(), "inputs": tokens()}, "cache needs a model whose forward takes past_key_values"),
        ({"over": ("padding",), "inputs": {"input_ids": torch.randn(2, 3)}}, "padding needs tokens"),
        ({"over": ("batch",), "inputs": {"input_ids": tokens(1)}}, "inputs have 1 row"),
        ({"over": ("checkpointing",), "model": nn.Linear(3, 3), "inputs": torch.ones(2, 3)}, "checkpointing needs blocks"),
        ({"reduction": "max"}, "reduction='max'"),
        ({"step": 3}, "step is an int"),
    ],
)
def test_what_cannot_be_asked(given: dict[str, Any], said: str) -> None:
    arguments = {"model": Chat(), "inputs": {"input_ids": tokens()}, **given}
    with pytest.raises(precheck.InputError, match=re.escape(said)):
        precheck.vary(**arguments)


def test_nothing_of_the_users_is_changed() -> None:
    model = Chat()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random, threads, modes = torch.get_rng_state(), torch.get_num_threads(), [module.training for module in model.modules()]
    precheck.vary(model, {"input_ids": tokens()}, ("threads", "checkpointing", "dropout", "batch", "cache"), loss=mean)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert (threads, modes) == (torch.get_num_threads(), [module.training for module in model.modules()])
    assert all("forward" not in vars(module) for module in model.modules())
    assert all(each.grad is None for each in model.parameters())
    assert model.dropout.p == 0.2


def test_ranks_average_what_each_has_lost() -> None:
    """A mean over rows is the mean of ranks' means; a sum is not, and neither is a mean over tokens of which ranks have unequally many."""
    net, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), torch.randn(6, 8)
    healthy = precheck.vary(net, x, {"ranks": 3}, loss=lambda out: out.square().mean())
    assert not healthy.errors
    assert "bits first differ" not in healthy.summary()  # rows are in another order, which says nothing of the modules
    few = {"x": x, "mask": torch.tensor([[1.0], [0.0], [1.0], [0.0], [1.0], [1.0]])}

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.net(x), mask

    report = precheck.vary(Masked(), few, ("ranks",), loss=lambda out: (out[0] * out[1]).square().sum() / out[1].sum())
    assert report.verdict == "different"
    assert report.errors[0].message.startswith("2 ranks: ")
    with pytest.raises(precheck.InputError, match="ranks need a loss"):
        precheck.vary(net, x, ("ranks",))
    with pytest.raises(precheck.InputError, match=r"6 rows cannot be dealt out evenly to 4 ranks"):
        precheck.vary(net, x, {"ranks": 4}, loss=mean)


class Recurrent(torch.nn.Module):
    """Returns states with the rows in the second axis, as torch's recurrent layers do. `leaks`: a row reads the rows before it."""

    def __init__(self, layers: int = 1, leaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line, self.leaks = torch.nn.LSTM(5, 5, layers, batch_first=True), leaks

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        made, (state, memory) = self.line(x)
        return made, (state.cumsum(1) if self.leaks else state, memory)


@pytest.mark.parametrize("way", ["order", "batch"])
@pytest.mark.parametrize("count", [2, 4])
def test_rows_may_lie_in_the_second_axis_of_an_output(way: str, count: int) -> None:
    """With two rows the axis of the layers is as long as that of the rows."""
    x, ways = torch.randn(count, 3, 5), {way: count // 2}
    assert not precheck.vary(Recurrent(2), x, ways).errors
    assert precheck.vary(Recurrent(2, leaks=True), x, ways).errors


def test_a_way_that_the_model_cannot_take_is_refused_with_its_error() -> None:
    def four(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(4.0)[:, None]

    with pytest.raises(precheck.InputError, match=r"batch of 2: the model runs as it is, but not in this way \(RuntimeError: The size of tensor a"):
        precheck.vary(four, torch.randn(4, 3), {"batch": 2})
    with pytest.raises(RuntimeError, match="The size of tensor a"):  # which is the model's own
        precheck.vary(four, torch.randn(5, 3), {"batch": 2})


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_rows_of_a_sparse_output_are_turned_and_joined(layout: torch.layout) -> None:
    """In its own layout, which the loss reads. A fault between rows is found there as in a dense one."""

    class Net(torch.nn.Module):
        def __init__(self, mixed: bool) -> None:
            super().__init__()
            self.mixed, self.line = mixed, torch.nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.line(x).relu()
            return (made - made.mean(0) if self.mixed else made).to_sparse(layout=layout)

    torch.manual_seed(0)
    x = torch.randn(4, 6)
    for mixed, verdicts in ((False, {"bitwise", "rounding"}), (True, {"different"})):
        report = precheck.vary(Net(mixed), x, over=("order", "batch"), loss=lambda out: out.values().square().sum())
        assert report.facts["variations"]["batch of 1"] in verdicts, report.summary()
        assert report.facts["variations"]["order"] in {"bitwise", "rounding"}, report.summary()


class Ragged(nn.Module):
    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.fault, self.out = fault, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.relu(self.out(x))
        return made * x.size(0) if self.fault else made


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_rows_of_other_lengths_are_turned_and_joined(layout: torch.layout) -> None:
    torch.manual_seed(0)
    x = torch.nested.nested_tensor([torch.randn(length, 4) for length in (3, 5, 2)], layout=layout)
    assert not precheck.vary(Ragged(fault=False), x, ("order", "batch")).errors
    report = precheck.vary(Ragged(fault=True), x, ("order", "batch"))
    assert report.facts["variations"] == {"order": "bitwise", "batch of 1": "different"}
    assert precheck.compare(Ragged(fault=False), Ragged(fault=True), x, match={}).errors
