"""Where two part on the way back, and where a module is called otherwise: the module named is the one whose code differs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import precheck


class Followed(nn.Module):
    """One network learns to say what another says; its first bias is before a norm, so that its gradient is zero on paper."""

    def __init__(self, learning: bool = False) -> None:
        super().__init__()
        self.learning = learning
        self.online = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
        self.target = copy.deepcopy(self.online)

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        wanted = self.target(x.flip(1))
        given = self.online(x)
        difference = given - (wanted if self.learning else wanted.detach())
        return (difference * difference if twice else difference.square()).mean()


class Straight(nn.Module):
    """A table between two layers, whose gradient goes straight through."""

    def __init__(self, stopped: bool = False, other: bool = False) -> None:
        super().__init__()
        self.stopped, self.other, self.first, self.table, self.last = stopped, other, nn.Linear(6, 8), nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x)
        taken = self.table((z[:, :5]).argmax(-1))
        straight = taken.detach() + (z - z.detach()) if self.other else z + (taken - z).detach()
        lost = (taken - z.detach()).square().mean()
        return self.last(taken if self.stopped else straight).square().mean() + lost


class Rows(nn.Module):
    """The state after the last step of each row, of rows that are padded; `packed`: torch is told how long they are."""

    def __init__(self, packed: bool = False, padded: bool = False) -> None:
        super().__init__()
        self.packed, self.padded, self.cells, self.last = packed, padded, nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if self.packed:
            final = self.cells(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][0]
        else:
            final = self.cells(x)[0].gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 8))[:, 0]
        return self.last(self.cells(x)[1][0] if self.padded else final)


def pair(kind: type[nn.Module], ways: dict[str, bool]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model, other = kind(), kind(**ways)
    if isinstance(model, Followed):
        model.target[3].weight.data.mul_(0.5)  # type: ignore[operator, union-attr]
    other.load_state_dict(model.state_dict())
    return model, other


X, LENGTHS = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([4, 2, 3])
ROWS = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0)), LENGTHS


@pytest.mark.parametrize(("kind", "ways", "inputs"), [
    (Followed, {"learning": True}, X),
    (Straight, {"other": True, "stopped": True}, X),
    (Rows, {"packed": True, "padded": True}, ROWS),
])  # fmt: skip
def test_the_code_that_calls_the_modules_is_named(kind: type[nn.Module], ways: dict[str, bool], inputs: Any) -> None:
    model, other = pair(kind, ways)
    report = precheck.compare(model, other, inputs, loss=lambda out: out.square().mean())
    assert report.verdict == "different"
    assert report.errors[0].module == ""
    assert "they first differ in the model's own code" in report.errors[0].message


@pytest.mark.parametrize(("kind", "ways", "inputs"), [(Followed, {}, X), (Straight, {"other": True}, X), (Rows, {"packed": True}, ROWS)])
def test_the_same_written_otherwise_passes(kind: type[nn.Module], ways: dict[str, bool], inputs: Any) -> None:
    model, other = pair(kind, ways)
    asked = (lambda x: other(x, twice=True)) if kind is Followed else other
    assert precheck.compare(model, asked, inputs, loss=lambda out: out.square().mean()).verdict in ("rounding", "bitwise")


def test_a_module_that_detaches_what_it_is_given_is_named() -> None:
    class Last(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.detach())

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    other = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Last(8, 3))
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, X, loss=lambda out: out.square().mean())
    assert report.errors[0].module == "2"


class Listed(nn.Module):
    """Layers in a list, between which a stream may be cut off from its gradient."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.cut, self.words, self.layers = cut, nn.Embedding(7, 6), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for place, layer in enumerate(self.layers):
            x = torch.tanh(layer(x.detach() if self.cut and place in (0, 2) else x))
        return x


def test_a_list_of_modules_has_no_code_to_be_named() -> None:
    model, other = pair(Listed, {"cut": True})
    report = precheck.compare(model, other, torch.arange(7)[None], loss=lambda out: out.square().mean())
    assert report.verdict == "different"
    assert report.errors[0].module == ""


class Block(nn.Module):
    """A residual block whose layers are its own, or, `gathered`, in a module of their own."""

    def __init__(self, gathered: bool, scale: float = 1.0, over: float = 1.0) -> None:
        super().__init__()
        self.gathered, self.scale, self.over, self.norm = gathered, scale, over, nn.LayerNorm(6)
        up, down = nn.Linear(6, 12), nn.Linear(12, 6)
        if gathered:
            self.feed = nn.Sequential(up, nn.GELU(), down)
        else:
            self.up, self.down = up, down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x) * self.scale
        return x + self.over * (self.feed(y) if self.gathered else self.down(nn.functional.gelu(self.up(y))))


def stacks(gathered: bool, **faults: float) -> tuple[nn.Module, nn.Module]:
    """Three blocks, of which the other model gathers the layers, or takes them out; its middle one has the fault. No name but numbers is the same."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(gathered) for _ in range(3)))
    port = nn.ModuleDict({"body": nn.ModuleList(Block(not gathered, **(faults if place == 1 else {})) for place in range(3))})
    with torch.no_grad():
        for value in model.parameters():
            value.normal_()
    for ours, theirs in zip(port["body"].parameters(), model.parameters(), strict=True):  # type: ignore[union-attr]
        ours.data.copy_(theirs.data)
    return model, nn.Sequential(port["body"][0], port["body"][1], port["body"][2])  # type: ignore[index]


@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("faults", [{"scale": 1.5}, {"over": 0.5}, {}])
def test_layers_that_one_side_has_in_a_module_of_their_own(gathered: bool, faults: dict[str, float]) -> None:
    """The output of the inner module is not the block's, to which the input is added."""
    report = precheck.compare(*stacks(gathered, **faults), torch.randn(5, 6), loss=lambda out: out.square().mean())
    assert [each.module for each in report.errors] == (["1"] if faults else [])


class Context(nn.Module):
    """What one reads of the other; `bare`: it reads it without its norm."""

    def __init__(self, bare: bool = False) -> None:
        super().__init__()
        self.bare, self.ask, self.norm, self.answer = bare, nn.Linear(6, 8), nn.LayerNorm(5), nn.Linear(5, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.ask(x) * self.answer(y if self.bare else self.norm(y))


class Two(nn.Module):
    def __init__(self, bare: bool = False) -> None:
        super().__init__()
        self.first, self.read, self.last = nn.Linear(6, 6), Context(bare), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.last(self.read(self.first(x), y.flip(-1)))


def test_the_module_that_passes_on_a_tensor_as_it_was_given_is_named_and_not_the_one_that_made_it() -> None:
    torch.manual_seed(0)
    model, other = Two(), Two(bare=True)
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, (torch.randn(4, 6), 3 * torch.randn(4, 5) + 1))
    assert report.errors[0].module == "read", report.summary()
    assert "they first differ in read, at " in report.errors[0].message


class Filtered(nn.Module):
    """Channels, each with a norm of its own, before which a bias is nothing on paper."""

    def __init__(self, biased: bool = True, scaled: bool = False) -> None:
        super().__init__()
        self.biased, self.scaled, self.filter, self.norm = biased, scaled, nn.Conv1d(3, 4, 3), nn.GroupNorm(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.conv1d(x, self.filter.weight, self.filter.bias if self.biased else None)
        return self.norm(y) if not self.scaled else y


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_gradient_that_is_zero_on_paper_may_be_none(precision: str, turned: bool) -> None:
    """One side leaves out a bias before a norm, and has no gradient of it; without a norm behind it that is another function."""

    def pair(scaled: bool) -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(0)
        made = [Filtered(scaled=scaled), Filtered(biased=False, scaled=scaled)]
        made[1].load_state_dict(made[0].state_dict())
        return (made[1], made[0]) if turned else (made[0], made[1])

    x = torch.randn(5, 3, 12, generator=torch.Generator().manual_seed(1))
    given: dict[str, Any] = {"precision": precision, "loss": lambda out: out.float().relu().square().mean()}
    healthy = precheck.compare(*pair(scaled=False), x, **given)
    assert not healthy.errors, healthy.summary()
    broken = precheck.compare(*pair(scaled=True), x, **given)
    assert broken.verdict == "different", broken.summary()
    assert any("has none" in finding.message for finding in broken.errors) or "computes something else" in broken.errors[0].message


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_parts_that_are_compiled_have_the_users_names() -> None:
    """torch.compile puts a part that it compiled into a module `_orig_mod`; nobody wrote that name."""

    def pair(eps: float) -> tuple[nn.Module, nn.Sequential]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), nn.Linear(8, 3))
        other = copy.deepcopy(model)
        other[1][1].eps = eps  # type: ignore[index]
        other[1] = torch.compile(other[1], backend="eager")
        return model, other

    given: dict[str, Any] = {"loss": lambda out: out.square().mean()}
    report = precheck.compare(*pair(1e-2), torch.randn(4, 8), **given)
    assert report.errors[0].module == "1.1"
    assert "they first differ in module 1.1, at " in report.errors[0].message
    assert "eps is 0.01 in other's 1.1, and 1e-05 in model's" in report.errors[0].message
    assert "_orig_mod" not in report.to_json()
    model, other = pair(1e-2)
    turned = precheck.compare(other, model, torch.randn(4, 8), match={"1.1": "1.1"}, **given)
    assert turned.errors[0].module == "1.1"
    model, other = pair(1e-2)
    other[1]._orig_mod[0].weight.data.mul_(2)  # type: ignore[operator, index, union-attr]  # so that weights cannot match it, and names have to
    doubled = precheck.compare(model, other, torch.randn(4, 8), **given)
    assert doubled.errors[0].module == "1.0", doubled.summary()
    assert "unmatched_in_other" not in doubled.facts


class Routed(nn.Module):
    """Rows go to the expert that their sum names: to all of them behind a mask, or to their own alone."""

    def __init__(self, sorted_: bool) -> None:
        super().__init__()
        self.sorted, self.experts = sorted_, nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        to = (x.sum(-1) > 0).long()
        if not self.sorted:
            return torch.stack([expert(x) for expert in self.experts])[to, torch.arange(len(x))]
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            made = made.index_add(0, (to == number).nonzero()[:, 0], expert(x[to == number]))
        return made


class TwoRouted(nn.Module):
    def __init__(self, sorted_: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.second, self.factor = Routed(sorted_), Routed(sorted_), factor
        self.norm = nn.LayerNorm(6)
        self.norm.weight.data.copy_(torch.arange(1.0, 7.0))  # so that rows have sums that are not zero on paper

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)) * self.factor)


def test_tensors_of_another_size_inside_of_a_module_that_returns_the_same_are_not_where_models_part() -> None:
    torch.manual_seed(0)
    model, other = TwoRouted(False), TwoRouted(True)
    other.load_state_dict(model.state_dict())
    x = torch.randn(8, 6)
    assert not precheck.compare(model, other, x).errors
    wrong = TwoRouted(True, 1.5)
    wrong.load_state_dict(model.state_dict())
    assert [each.module for each in precheck.compare(model, wrong, x).errors] == [""]
