"""Of tensors that are even a golden keeps a sample, and checks look at no more of what passes between modules: still nothing gets by."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from precheck.checking import check
from precheck.findings import Report
from precheck.goldens.file import Golden, read
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of
from precheck.observe.recording import recorder
from precheck.observe.recording.reduce import even, extent, peak, reduced, reduced_together, thinned

RATE = 100.0  # a step is about 1e-3 then, of weights of 0.07 of which bf16 sees 2.4e-4


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def few_rows() -> torch.Tensor:
    """An embedding's gradient: eight rows of a thousand."""
    gradient = torch.zeros(1024, 256)
    gradient[::128] = normal(8, 256)
    return gradient


def one_outlier() -> torch.Tensor:
    values = normal(512, 512)
    values[100, 101] = 1e4
    return values


def broken() -> torch.Tensor:
    values = normal(512, 512)
    values[::2, ::2] = math.nan
    return values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (normal(512, 512), True),
        (normal(512, 512).bfloat16() * 1e-20, True),
        (torch.complex(normal(512, 256), normal(512, 256, seed=1)), True),
        (normal(100, 100), False),
        (few_rows(), False),
        ((8 * normal(512, 512)).softmax(-1), False),
        (one_outlier(), False),
        (torch.zeros(512, 512), False),
        (broken(), False),
    ],
    ids=["normal", "tiny bf16", "complex", "small", "few rows", "peaked", "outlier", "zeros", "NaN"],
)
def test_what_a_sample_may_stand_for(values: torch.Tensor, expected: bool) -> None:
    assert even(values) is expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_sample_is_as_large_as_the_whole(dtype: torch.dtype) -> None:
    """Its norm to four standard deviations of 32 258 squares of Gaussian numbers, √(2 / 32258) / 2 each; counts as asked for."""
    values = normal(512, 512).to(dtype)
    values[0, 0] = 0
    whole, folded = reduced(values), reduced(values, "folded")
    [alone] = reduced_together([thinned(values)], [values.numel()])
    for sample in (folded, alone):
        assert sample["norm"] == pytest.approx(whole["norm"], rel=4 * math.sqrt(2 / 32258) / 2)
        assert math.sqrt(float((sample["sketch"] ** 2).sum())) == pytest.approx(sample["norm"], rel=4 * 0.063)
    assert (folded["shape"], folded["dtype"], folded["sampled"]) == (whole["shape"], whole["dtype"], True)
    assert (folded["amax"], folded["zeros"]) == (whole["amax"], whole["zeros"])
    assert alone["amax"] == float(thinned(values).abs().max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("planted", [0.0, -3e4, math.inf, -math.inf, math.nan], ids=str)
def test_a_brief_look_sees_how_large_the_whole_is(dtype: torch.dtype, planted: float) -> None:
    """What is not finite, NaN too, is beyond all that is."""
    values = normal(512 * 512).to(dtype)
    values[77_777] = planted
    assert peak(values) == extent(values)[0] == (float(values.abs().max()) if math.isfinite(planted) else math.inf)
    assert peak(values[:0]) == 0.0


def test_a_sample_of_another_layout_is_of_the_same_elements() -> None:
    values = normal(512, 512)
    turned = values.t().contiguous().t()
    assert turned.stride() != values.stride()
    assert torch.equal(thinned(turned), thinned(values))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [(1,), (3, 0, 127, 128), (2032, 2033, 7), (16129, 5), (16130, 32258, 1)], ids=str)
@pytest.mark.parametrize("rough", [False, True])
def test_short_tensors_at_once_are_each_by_itself(dtype: torch.dtype, lengths: tuple[int, ...], rough: bool) -> None:
    """Each of them whole, filled up with zeros that nobody counts."""
    tensors = [(10.0**seed * normal(length, seed=seed)).to(dtype) for seed, length in enumerate(lengths)]
    for tensor in tensors:
        tensor[2:4] = 0
    for one, other in zip(map(reduced, tensors), reduced_together(tensors, lengths, rough=rough), strict=True):
        assert other["norm"] == pytest.approx(one["norm"], rel=1e-5)
        assert numpy.allclose(other["sketch"], one["sketch"], rtol=1e-5, atol=1e-5 * one["norm"])
        assert (other["amax"], other["zeros"]) == (one["amax"], one["zeros"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("spoilt", [False, True])
def test_many_samples_at_once_are_each_by_itself(dtype: torch.dtype, spoilt: bool) -> None:
    """But for sums of float32 within rows, and for Inf and NaN, which are counted among the sample for all."""
    tensors = [(scale * normal(512, 512, seed=seed)).to(dtype) for seed, scale in enumerate((1.0, 1e-3, 30.0))]
    tensors[1][::3] = 0
    if spoilt:
        tensors[2][::5] = math.inf
    alone = [reduced(thinned(each)) for each in tensors]
    times = tensors[0].numel() / len(thinned(tensors[0]))
    together = reduced_together([thinned(each) for each in tensors], [each.numel() for each in tensors])
    for one, other in zip(alone, together, strict=True):
        assert other["norm"] == pytest.approx(one["norm"] * math.sqrt(times), rel=1e-5)
        assert numpy.allclose(other["sketch"], one["sketch"] * math.sqrt(times), rtol=1e-4, atol=1e-5 * one["norm"])
        assert (other["amax"], other["zeros"]) == (one["amax"], round(one["zeros"] * times))
        assert other.get("posinf", 0) == math.ceil(one.get("posinf", 0) * times)
        assert not other.keys() & {"shape", "dtype", "sampled"}


class Net(nn.Module):
    """Three results of 262 144 elements on the way, one at the end; `harm` comes after the second."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 1024)
        self.harm: list[Callable[[torch.Tensor], torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(nn.functional.gelu(self.first(x)))
        for harm in self.harm:
            hidden = harm(hidden)
        result: torch.Tensor = self.last(hidden)
        return result


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def sgd(rate: float) -> Callable[..., torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "net.safetensors"
    refresh(path, job_of(Net(), normal(256, 64), loss=loss, optimizer=sgd(RATE)))
    return path


def checked(golden: Path, harm: Callable[[torch.Tensor], torch.Tensor] | None = None, precision: str = "bf16-true") -> Report:
    net = Net()
    net.harm += [harm] if harm else []
    return check(net, normal(256, 64), golden=golden, precision=precision, loss=loss, optimizer=sgd(RATE))


def kept(golden: Path) -> Golden:
    return read(golden)


def test_the_golden_says_what_it_holds_a_sample_of(golden: Path) -> None:
    held = {each.record.key: each.record.sampled for each in kept(golden).records}
    assert held["output:second@1"]
    assert held["parameter-gradient:second.weight@1"]
    assert held["update:second.weight@1"]
    assert not held["parameter-gradient:second.bias@1"]  # 1024 elements
    assert not held["loss:loss@1"]
    assert not held["input:input@1"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "bf16-mixed", "16-mixed", "bf16-master"])
def test_the_healthy_net_passes(golden: Path, precision: str) -> None:
    report = checked(golden, precision=precision)
    assert not report.errors, report.summary()
    assert not [finding for finding in report.findings if finding.rule == "golden-mismatch"]


def everywhere(x: torch.Tensor) -> torch.Tensor:
    return x * 1.05 if x.dtype is torch.bfloat16 else x


def in_some_rows(x: torch.Tensor) -> torch.Tensor:
    """One in eight: the norm is off by (1 - √(7/8)) and the rows themselves by all that they are."""
    return x * (torch.arange(len(x)) % 8 > 0).to(x.dtype)[:, None] if x.dtype is torch.bfloat16 else x


def one_element(x: torch.Tensor) -> torch.Tensor:
    return x.index_put((torch.tensor(3), torch.tensor(5)), torch.tensor(math.inf, dtype=x.dtype)) if x.dtype is torch.bfloat16 else x


@pytest.mark.parametrize("harm", [everywhere, in_some_rows, one_element])
def test_harm_on_the_way_is_found(golden: Path, harm: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert checked(golden, harm).errors


def test_one_infinity_in_the_result_is_found_though_no_loss_tells(tmp_path: Path) -> None:
    """It is not among the sample, whose runs begin at multiples of a prime: the result is looked at whole."""
    net, place = Net(), (200, 77)
    index = torch.zeros(256, 1024, dtype=torch.bool)
    index[place] = True
    assert not thinned(index).any()
    refresh(tmp_path / "net.safetensors", job_of(net, normal(256, 64)))
    net.last.register_forward_hook(lambda module, args, out: out.masked_fill(index, math.inf) if out.dtype is torch.bfloat16 else out)
    report = check(net, normal(256, 64), golden=tmp_path / "net.safetensors", precision="bf16-true")
    assert report.errors


def test_one_infinity_in_a_gradient_is_found(golden: Path) -> None:
    net = Net()
    net.second.weight.register_hook(lambda grad: grad.masked_fill(grad == grad.max(), math.inf) if grad.dtype is torch.bfloat16 else grad)
    assert check(net, normal(256, 64), golden=golden, precision="bf16-true", loss=loss, optimizer=sgd(RATE)).errors


def test_a_lost_update_is_found_in_the_sample(tmp_path: Path) -> None:
    path, small = tmp_path / "net.safetensors", sgd(1e-2)
    refresh(path, job_of(Net(), normal(256, 64), loss=loss, optimizer=small))
    report = check(Net(), normal(256, 64), golden=path, precision="bf16-true", loss=loss, optimizer=small)
    assert "lost-update" in {finding.rule for finding in report.errors}, report.summary()


def test_it_does_not_matter_how_many_samples_wait(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = checked(golden)
    monkeypatch.setattr(recorder, "_WAITING", 2)
    assert checked(golden).boundaries == plain.boundaries
    assert len([row for row in plain.boundaries if row.kind not in ("returned", "gradient")]) == 10
