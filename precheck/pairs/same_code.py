"""Finds out whether a module runs code that is known to be right, so that wrong results of it come from what it is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import torch

from precheck.pairs.comparison import Comparison
from precheck.pairs.layouts import Link

FILTERS = torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d


def known_right(comparison: Comparison, module: str, right: Collection[str]) -> bool:
    """Whether a module has model's weights, and is a layer of torch with model's options or has the code of a module that was `right` before, or of
    the same part of one, with the rows of model's weights in the same order as there."""
    matching, model = comparison.matching, comparison.other.job.model
    if not module or not matching.agrees(module):
        return False
    wanted, here = matching.modules.get(module), model.get_submodule(module)
    if wanted is not None and not any(True for _ in here.buffers()):
        if _of_torch(here, comparison.model.job.model.get_submodule(wanted)) or by_definition(comparison, module):
            return True
    known = [each for each in right_twins(comparison, module, right) if _alike(here, model.get_submodule(each))]
    sources = _held_weights(comparison, module, module) if known else {}
    return any(sources == _held_weights(comparison, each, each) for each in known)


def by_definition(comparison: Comparison, module: str) -> bool:
    """Whether a module is torch's linear layer, or its table of words, with the numbers of such layers of `model`, or of a filter as a matrix. No
    option of these two changes what they compute of their weights, so that its result is right if its input is, whatever the part of `model` does
    besides: turn pictures into rows before the layer, say, or add two to all places."""
    matching, here = comparison.matching, comparison.other.job.model.get_submodule(module)
    kind = next((each for each in (torch.nn.Linear, torch.nn.Embedding) if type(here) is each), None)
    held = [link for link in matching.links if any(name.rpartition(".")[0] == module for name in link.others)]
    altered = bool(here._forward_hooks or here._forward_pre_hooks) or getattr(here, "max_norm", None) is not None
    if kind is None or not module or not held or altered or not matching.agrees(module):
        return False
    owners = {comparison.model.job.model.get_submodule(name.rpartition(".")[0]) for link in held for name in link.models}
    if any(_adapted(comparison, name) for link in held for name in link.models):
        return False
    in_order = all(link.order is None and not link.turned and link.dim == 0 and not link.axes for link in held)
    if kind is torch.nn.Embedding:
        return in_order and all(isinstance(each, kind) for each in owners) and not any(link.shape for link in held)
    return in_order and all(type(each) in (kind, *FILTERS) and getattr(each, "groups", 1) == 1 for each in owners)


def _adapted(comparison: Comparison, weight: str) -> bool:
    """Whether the module around a layer of model's has weights of its own beside the layer's, as an adapter has, and `other` lacks all of them."""
    layer = weight.rpartition(".")[0]
    around = layer.rpartition(".")[0]
    names = [name for name, _ in comparison.model.job.model.named_parameters() if name.startswith(f"{around}.")]
    further = {name for name in names if not name.startswith(f"{layer}.")}
    return bool(around and further) and further <= set(comparison.matching.missed)


def rows_in_order(comparison: Comparison, module: str) -> bool:
    """Whether the weights of a module have their rows in the order of model's."""
    return not any(link.order is not None for link in comparison.matching.links if any(name.rpartition(".")[0] == module for name in link.others))


def same_layer_of_torch(comparison: Comparison, module: str) -> bool:
    """Whether a module of `other` is a layer of torch with the options, weights and buffers of model's. It may be a norm, which joins rows."""
    wanted = comparison.matching.modules.get(module)
    if wanted is None or not module or not comparison.matching.agrees(module):
        return False
    here, there = comparison.other.job.model.get_submodule(module), comparison.model.job.model.get_submodule(wanted)
    return here is not there and _of_torch(here, there) and _equal(*(dict(each.named_buffers()) for each in (here, there)))


def weight_of_another_form(comparison: Comparison, owner: str, right: Collection[str]) -> tuple[str, str] | None:
    """The part of a module that holds a weight in another way than a `right` module with the same code: with model's numbers where that one has
    others, such as numbers with a scale in them, in another order, or those of another weight of model's. The code is right, so that this weight is
    at fault. Of two that are exchanged the first. Also what the weight holds, in words. None if weights of several parts differ otherwise."""
    modules = dict(comparison.other.job.model.named_modules())
    same, alike = twins(comparison, owner), right_twins(comparison, owner, right) if owner else []
    alike = [each for each in alike if each in same or not type(modules[owner]).__module__.startswith("torch.")]  # any two layers differ in weights
    peer = next((each for each in alike if any(True for _ in modules[each].parameters()) and _alike(modules[owner], modules[each])), None)
    if peer is None:
        return None
    here, there = (_held_weights(comparison, each, each) for each in (owner, peer))
    unlike = [name for name, held in here.items() if there.get(name, held) != held]
    exchanged = all(here[name].same and there[name].same for name in unlike)
    if not unlike or (len({name.rpartition(".")[0] for name in unlike}) > 1 and not exchanged):
        return None
    name, one, two = unlike[0], here[unlike[0]], there[unlike[0]]
    if one.models != two.models:
        words = f"{owner}.{name} holds model's {' and '.join(one.models)}, and {peer}.{name}, which is right, {' and '.join(two.models)}"
    else:
        words = f"{owner}.{name} holds {_kind(one)}, and {peer}.{name}, which is right, {_kind(two)}"
    return f"{owner}.{name}".rpartition(".")[0], words


def _kind(link: Link) -> str:
    """What one weight holds of model's, in words."""
    if not link.same:
        return "other numbers than model's"
    if link.order is not None:
        return f"model's rows in order {_short(link.order)}"
    turned = f" with axes in order {_short(link.axes)}" if link.axes else " transposed" if link.turned else ""
    return f"model's numbers{turned}{' in another shape' if link.shape and not link.axes else ''}"


def _short(order: Sequence[int]) -> str:
    return ", ".join(map(str, order[:12])) + (" and so on" if len(order) > 12 else "")


def peers(comparison: Comparison, module: str, among: Collection[str]) -> list[str]:
    """Other modules with the class of this one."""
    parts = dict(comparison.other.job.model.named_modules())
    return [each for each in sorted(among) if each != module and type(parts[each]) is type(parts[module])]


def twins(comparison: Comparison, module: str) -> dict[str, list[str]]:
    """The same part of modules that have the class of one around it, each with these modules: the first block's filter for the second's."""
    modules, names, found = dict(comparison.other.job.model.named_modules()), module.split("."), dict[str, list[str]]()
    for depth in range(1, len(names)):
        for each in peers(comparison, ".".join(names[:depth]), modules):
            found.setdefault(".".join((each, *names[depth:])), []).append(each)
    return found


def right_twins(comparison: Comparison, module: str, right: Collection[str]) -> list[str]:
    """The modules with the class of this one that are `right`, and the same part of right modules, which is right too."""
    parts = dict(comparison.other.job.model.named_modules())
    inside = [each for each, around in twins(comparison, module).items() if each in parts and set(around) & set(right)]
    return [*peers(comparison, module, right), *inside]


def siblings(model: torch.nn.Module, module: str) -> list[str]:
    """The same part of other blocks: modules of the same class whose names differ in one number alone."""
    names, kind = module.split("."), type(model.get_submodule(module))

    def one_number(other: str) -> bool:
        pairs = list(zip(names, other.split("."), strict=False))
        unlike = [each for each in pairs if each[0] != each[1]]
        return other.count(".") == module.count(".") and len(unlike) == 1 and all(each.isdecimal() for each in unlike[0])

    return [each for each, part in model.named_modules() if type(part) is kind and one_number(each)]


def _held_weights(comparison: Comparison, module: str, owner: str) -> dict[str, Link]:
    """For each weight in a part of `owner`, of which weights of model's it is made, in which form and order."""
    links = comparison.matching.links
    holder = comparison.matching.modules.get(owner)
    common = len(holder.split(".")) if holder else 0
    if holder is None:  # then by what the weights' names have in common, but for their last parts
        around = [name.split(".")[:-1] for link in links if any(name.startswith(f"{owner}.") for name in link.others) for name in link.models]
        common = sum(1 for each in zip(*around, strict=False) if len(set(each)) == 1)
    found: dict[str, Link] = {}
    for link in links:
        models = tuple(".".join(name.split(".")[common:]) for name in link.models)
        others = tuple(name.removeprefix(f"{owner}.") if name.startswith(f"{owner}.") else "" for name in link.others)
        for name in link.others:
            if name.startswith(f"{module}."):
                found[name.removeprefix(f"{owner}.")] = dataclasses.replace(link, others=others, models=models)
    return found


def _of_torch(here: torch.nn.Module, there: torch.nn.Module) -> bool:
    alike = type(here) is type(there) and (here.extra_repr(), here.training) == (there.extra_repr(), there.training)
    return alike and type(here).__module__.startswith("torch.nn.modules") and not any(True for _ in here.children())


def _alike(here: torch.nn.Module, there: torch.nn.Module) -> bool:
    """Whether two modules differ in their parameters alone: parts of the same classes with the same attributes, buffers and hooks."""
    if type(here) is not type(there) or isinstance(here, torch.jit.ScriptModule):
        return False
    parts = [dict(each.named_modules()) for each in (here, there)]
    return parts[0].keys() == parts[1].keys() and all(_same(parts[0][name].__dict__, parts[1][name].__dict__) for name in parts[0])


def _same(here: dict[str, Any], there: dict[str, Any]) -> bool:
    skipped = ("_parameters", "_modules")
    return here.keys() == there.keys() and all(name in skipped or _equal(value, there[name]) for name, value in here.items())


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return a is b or (isinstance(a, (int, float, str, set, frozenset)) and a == b)
