"""The tensors inside arbitrary structures: found under their paths, changed in place of each other, and nothing else touched."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precheck.observe.containers import call, mapped, tensors

brief = settings(max_examples=150, deadline=None, database=None)


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Box:
    content: Any
    note: str = "n"


@dataclasses.dataclass(frozen=True)
class Sealed:
    content: Any


class Output(OrderedDict[str, Any]):
    """Like a transformers ModelOutput: keys are attributes too, and iteration gives keys."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        super().__setattr__(name, value)


leaves = st.builds(lambda n: torch.tensor([float(n)]), st.integers(0, 100)) | st.none() | st.integers() | st.text(max_size=3)
names = st.sampled_from(["a", "b", "logits", "0"])


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(names, inner, max_size=3)
        | st.dictionaries(names, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(names, inner, max_size=3).map(lambda d: Output(**d))
        | st.builds(Point, inner, inner)
        | st.builds(Box, inner)
        | st.builds(Sealed, inner)
    )


structures = st.recursive(leaves, nested, max_leaves=12)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if dataclasses.is_dataclass(a):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return bool(a == b)


@brief
@given(structures)
def test_a_changed_copy_has_the_same_types_and_paths(value: Any) -> None:
    before = [(path, float(t)) for path, t in tensors(value)]
    changed = mapped(value, lambda t: t + 1)
    assert type(changed) is type(value)
    assert [(path, float(t)) for path, t in tensors(changed)] == [(path, v + 1) for path, v in before]
    assert [(path, float(t)) for path, t in tensors(value)] == before
    assert equal(mapped(changed, lambda t: t - 1), value)


@brief
@given(structures)
def test_paths_lead_to_their_tensors(value: Any) -> None:
    paths = [path for path, _ in tensors(value)]
    assert len(set(paths)) == len(paths)
    for path, tensor in tensors(value):
        here = value
        for part in path.strip("[]").split("][") if path else []:
            if dataclasses.is_dataclass(here):
                here = getattr(here, part)
            else:
                here = here[part] if isinstance(here, dict) else here[int(part)]
        assert here is tensor


def test_attributes_follow_the_keys_of_an_output_class() -> None:
    value = Output(logits=torch.zeros(2), hidden=(torch.zeros(1),))
    changed = mapped(value, lambda t: t + 1)
    assert changed.logits is changed["logits"]
    assert torch.equal(changed.logits, torch.ones(2))
    assert torch.equal(value.logits, torch.zeros(2))


def test_mappings_that_are_no_dicts() -> None:
    value = UserDict(a=torch.zeros(2), b=3)
    changed = mapped(value, lambda t: t + 1)
    assert isinstance(changed, UserDict)
    assert torch.equal(changed["a"], torch.ones(2))
    assert torch.equal(value["a"], torch.zeros(2))
    assert [path for path, _ in tensors(value)] == ["[a]"]


def test_one_tensor_in_two_places_is_found_in_both() -> None:
    tensor = torch.zeros(2)
    assert [path for path, _ in tensors([tensor, {"x": tensor}])] == ["[0]", "[1][x]"]


def test_a_dataclass_with_a_field_that_was_never_set() -> None:
    @dataclasses.dataclass
    class Late:
        given: torch.Tensor
        later: torch.Tensor = dataclasses.field(init=False)

    assert [path for path, _ in tensors(Late(torch.zeros(2)))] == ["[given]"]
    assert not hasattr(mapped(Late(torch.zeros(2)), lambda t: t + 1), "later")


def test_what_is_no_structure_is_passed_on_as_it_is() -> None:
    for value in (object(), Box, {1, 2}, "text", range(3)):
        assert mapped(value, lambda t: t + 1) is value
        assert list(tensors(value)) == []


def test_inputs_are_arguments() -> None:
    def model(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    point, one = Point(1, 2), torch.zeros(1)
    assert call(model, one) == ((one,), {})
    assert call(model, (one, 2)) == ((one, 2), {})
    assert call(model, {"x": one}) == ((), {"x": one})
    assert call(model, [one, 2]) == (([one, 2],), {})
    assert call(model, point) == ((point,), {})
    assert call(model, ()) == ((), {})
