"""Matches parameters and modules of `other` to those of `model`: by the user's mapping, by identity, by name, by their contents.

Ports keep the numbers of their weights even where they rename, transpose or join them. So weights identify modules better than names do. Weights with
the same numbers in many modules (ones of a norm, zeros of a bias) are matched by the modules that hold them, then by order.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch

from precheck.observe.job import InputError
from precheck.pairs import layouts
from precheck.pairs.callables import users_name
from precheck.pairs.layouts import Link, equal, numbers, one_to_one, owner, rearranged, reordered_table, taken_apart


@dataclasses.dataclass(slots=True)
class Matching:
    """`links` are in the order of `other`'s parameters. `modules` maps names of `other`'s modules to `model`'s."""

    links: list[Link]
    modules: dict[str, str]
    lonely: list[str]  # parameters of `other` without a counterpart
    missed: list[str]  # parameters of `model` without a counterpart
    first: dict[str, str]  # maps each name of a parameter of `model` to its first name
    shared: frozenset[str] = frozenset()  # names of modules that both have
    copies: dict[str, str] = dataclasses.field(default_factory=dict)  # maps matched parameters of `other` to lonely ones with the same numbers

    def counterpart(self, module: str, shape: Sequence[int]) -> str | None:
        """The module of `model` whose tensor of that shape should equal that of a module of `other`. If rows of a weight are in another order, the
        result may be so too. It isn't if no axis is as long as the rows are many: then the module itself reads them, as a cell reads its gates."""
        rows = {len(link.order) for link in self.links if link.order is not None and any(owner(name) == module for name in link.others)}
        return self.modules.get(module, module if rows and module in self.shared and rows.isdisjoint(shape) else None)

    def agrees(self, module: str) -> bool:
        """Whether all weights in a module of `other` hold numbers of `model`, whose modules with these have no weights that `other` lacks."""
        held = [link for link in self.links if any(_within(name, module) for name in link.others)]
        owners = {owner(name) for link in held for name in link.models}
        lacking = owners & {owner(name) for name in self.missed} or any(_within(name, module) for name in self.lonely)
        return not lacking and all(link.same for link in held)

    def holds(self, module: str, wanted: str) -> bool:
        """Whether a module of `other` holds all matched weights of a module of `model`, and not only a part of them, as a cell of a layer does."""
        return all(_within(name, module) for link in self.links if any(_within(each, wanted) for each in link.models) for name in link.others)

    def used(self, names: Collection[str]) -> Matching:
        """The same, by the parameters that `other` uses: if one is not among `names`, but its copy is, the copy takes its place.

        A function may hold a model for its code, and run it on weights that it holds besides, as with `torch.func.functional_call`.
        """
        taken = {name: copy for name, copy in self.copies.items() if name not in names and copy in names}
        links = [dataclasses.replace(link, others=tuple(taken.get(name, name) for name in link.others)) for link in self.links]
        return dataclasses.replace(self, links=links, lonely=[name for name in self.lonely if name not in taken.values()])


def checked(match: object, model: torch.nn.Module, other: torch.nn.Module) -> dict[str, str]:
    """The argument `match`, validated. Every name in it must exist on its side, as a full name or as a prefix."""
    if match is None:
        return {}
    if not isinstance(match, Mapping) or not all(isinstance(each, str) for pair in match.items() for each in pair):
        raise InputError(f'match={match!r}; pass a mapping of names of other to names of model, as in {{"transformer.h": "layers"}}')
    names = {side: _names(module) for side, module in (("other", other), ("model", model))}
    match = {users_name(theirs.strip(".")): users_name(ours.strip(".")) for theirs, ours in match.items()}
    for theirs, ours in match.items():
        for side, name in (("other", theirs), ("model", ours)):
            if name and not any(each == name or each.startswith(f"{name}.") for each in names[side]):
                raise InputError(f"match names {name!r}, which {side} has not; it has {_few(names[side])}")
    return match


def matched(model: torch.nn.Module, other: torch.nn.Module, match: Mapping[str, str]) -> Matching:
    ours, theirs = (dict[str, torch.Tensor](each.named_parameters()) for each in (model, other))
    first = {name: next(known for known, each in ours.items() if each is value) for name, value in model.named_parameters(remove_duplicate=False)}
    found: dict[str, Link] = {}
    shared: dict[str, list[str]] = {}  # names that the user maps to one parameter of another shape; each is a part of it
    by_identity = {id(value): name for name, value in ours.items()}
    same_object = {name: by_identity[id(value)] for name, value in theirs.items() if id(value) in by_identity}
    ours, theirs = ({name: numbers(value) for name, value in each.items()} for each in (ours, theirs))
    plain = {users_name(name): name for name in first}  # the same, if parts of `model` are not compiled
    for name, value in theirs.items():
        told = mapped(users_name(name), match)
        wanted: str | None = None if told is None else plain.get(told, told)
        same = plain.get(users_name(name), name)
        if name in same_object:
            found[name] = Link((name,), (same_object[name],))
        elif wanted is not None and wanted in first and not _shaped_alike(value, ours[first[wanted]]):
            shared.setdefault(first[wanted], []).append(name)
        elif wanted is not None and wanted in first:
            found[name] = _named(name, value, first[wanted], ours)
        elif wanted is None and same in first and _shaped_alike(value, ours[first[same]]):
            found[name] = _named(name, value, first[same], ours)
    for wanted, names in shared.items():
        found.update(dict.fromkeys(names, _parts(wanted, ours[wanted], {name: theirs[name] for name in names})))
    _by_content({name: value for name, value in theirs.items() if name not in found}, ours, found)
    modules = _modules(model, other, match, found)
    used = {name for link in found.values() for name in link.models}
    links = list(dict.fromkeys(found[name] for name in theirs if name in found))
    lonely = [name for name in theirs if name not in found]
    copies: dict[str, str] = {}
    for name in lonely:
        alike = (one for one in same_object if one not in copies and f".{name}".endswith(f".{same_object[one]}") and equal(theirs[one], theirs[name]))
        copies.update(dict.fromkeys(list(alike)[:1], name))
    both = frozenset(dict(model.named_modules())) & frozenset(dict(other.named_modules()))
    return Matching(links, modules, lonely, [name for name in ours if name not in used], first, both, copies)


def mapped(name: str, match: Mapping[str, str]) -> str | None:
    """The name after the longest prefix in `match` is replaced, or None if no prefix fits."""
    parts = name.split(".")
    for length in range(len(parts), -1, -1):
        prefix = ".".join(parts[:length])
        if prefix in match:
            return ".".join(filter(None, (match[prefix], *parts[length:])))
    return None


def _named(name: str, value: torch.Tensor, wanted: str, ours: Mapping[str, torch.Tensor]) -> Link:
    link = one_to_one(name, value, wanted, ours[wanted]) or _sorted_rows(name, value, {wanted: ours[wanted]})
    return link or Link((name,), (wanted,), turned=value.shape != ours[wanted].shape, same=False)  # shapes are alike


def _parts(wanted: str, whole: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> Link:
    """The link of parts that the user mapped to one parameter: in the order that their numbers show, else in the given order if the shapes fit."""
    joined = _split(wanted, whole, parts)
    if joined is not None:
        return joined
    for turned in (False, True):
        shapes = [tuple(each.t().shape if turned and each.dim() == 2 else each.shape) for each in parts.values()]
        for dim in range(whole.dim()):
            rest = [(*shape[:dim], *shape[dim + 1 :]) for shape in shapes if len(shape) == whole.dim()]
            filled = len(rest) == len(shapes) and sum(shape[dim] for shape in shapes) == whole.shape[dim]
            if filled and set(rest) == {(*whole.shape[:dim], *whole.shape[dim + 1 :])}:
                return Link(tuple(parts), (wanted,), dim, turned, same=False)
    return Link(tuple(parts)[:1], (wanted,), same=False)


def _split(wanted: str, whole: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> Link | None:
    """The link of several parameters of other that are joined into one of model."""
    if joined := taken_apart(whole, parts):
        return Link(joined[0], (wanted,), 1 - joined[1] if joined[2] else joined[1], joined[2])
    if sorted_ := rearranged(whole, parts):
        return Link(sorted_[0], (wanted,), turned=sorted_[2], order=sorted_[1], ordered="others")
    return None


def _sorted_rows(name: str, whole: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> Link | None:
    """The link of a parameter of other whose rows are those of model's in another order, as where pairs of a head were converted to halves."""
    found = rearranged(whole, parts)
    return None if found is None else Link((name,), found[0], turned=found[2], order=found[1])


def _shaped_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.is_complex() == b.is_complex() and (a.shape == b.shape or (a.dim() == 2 and a.t().shape == b.shape))


def _by_content(left: Mapping[str, torch.Tensor], ours: Mapping[str, torch.Tensor], found: dict[str, Link]) -> None:
    def free() -> dict[str, torch.Tensor]:
        used = {name for link in found.values() for name in link.models}
        return {name: value for name, value in ours.items() if name not in used}

    told = [name for name, value in left.items() if not layouts.constant(value)]
    for name in told:  # weights with unique numbers
        links = (one_to_one(name, left[name], wanted, candidate) for wanted, candidate in free().items())
        link = next((each for each in links if each is not None), None)
        if link is not None:
            found[name] = link
    for name in told:  # several of model's joined into one of other's
        if name not in found and (joined := taken_apart(left[name], free())):
            found[name] = Link((name,), joined[0], joined[1], joined[2])
        elif name not in found and (link := _sorted_rows(name, left[name], free())) is not None:
            found[name] = link
    for wanted, value in free().items():  # several of other's joined into one of model's
        apart = {name: each for name, each in left.items() if name not in found}
        link = None if layouts.constant(value) else _split(wanted, value, apart)
        if link is not None:
            found.update(dict.fromkeys(link.others, link))
    for link in dict.fromkeys(found.values()):  # ones and zeros beside weights that are stored otherwise: in the same way
        for names in layouts.beside(link.others, {name: value for name, value in left.items() if name not in found}):
            stored = (layouts.stored_as(link, names, wanted, left, ours) for wanted in layouts.beside(link.models, free()))
            if (same := next(filter(None, stored), None)) is not None:
                found.update(dict.fromkeys(names, same))
    owners = _owners(found)
    for at_home in (True, False):  # others: by the module that holds them, then by order
        for name, value in left.items():
            hits = [] if name in found else [wanted for wanted, candidate in free().items() if equal(value, candidate)]
            if at_home:
                hits = [wanted for wanted in hits if owners.get(owner(name)) == owner(wanted)]
            last = [wanted for wanted in hits if wanted.rpartition(".")[2] == name.rpartition(".")[2]] or hits
            if last:
                found[name] = Link((name,), (last[0],))
            elif not at_home and name not in found and (joined := taken_apart(value, free())):
                found[name] = Link((name,), joined[0], joined[1], joined[2])
    _by_shape(left, free(), found)


def _by_shape(left: Mapping[str, torch.Tensor], free: Mapping[str, torch.Tensor], found: dict[str, Link]) -> None:
    """Matches parameters with different numbers, if only one of their shape is left on each side, or if their module is matched."""
    owners = _owners(found)
    rest = {name: value for name, value in left.items() if name not in found}
    for name, value in rest.items():
        alike = [wanted for wanted, candidate in free.items() if candidate.shape == value.shape and candidate.is_complex() == value.is_complex()]
        home = [wanted for wanted in alike if owners.get(owner(name)) == owner(wanted)]
        rivals = sum(each.shape == value.shape for each in rest.values())
        if home or (len(alike) == 1 and rivals == 1):
            found[name] = Link((name,), ((home or alike)[0],), same=False)


def _owners(found: Mapping[str, Link]) -> dict[str, str]:
    """Modules of `other` with those of `model` that hold their weights. With a part of a weight, or several in one, it computes another thing."""
    votes: dict[str, Counter[str]] = {}
    joined = {owner(name) for link in found.values() if len(link.models) + len(link.others) > 2 for name in link.others}
    for link in found.values():
        if len(link.models) == len(link.others) == 1 and link.order is None:
            votes.setdefault(owner(link.others[0]), Counter())[owner(link.models[0])] += 1
    return {theirs: count.most_common(1)[0][0] for theirs, count in votes.items() if theirs not in joined}


def _modules(model: torch.nn.Module, other: torch.nn.Module, match: Mapping[str, str], found: Mapping[str, Link]) -> dict[str, str]:
    """Matches modules by the user's mapping, by identity, by their weights, by name. Then those that hold exactly the same weights."""
    ours, theirs = dict(model.named_modules()), dict(other.named_modules())
    known, owners, modules = {id(module): name for name, module in ours.items()}, _owners(found), {"": ""}
    reordered = {owner(each) for link in found.values() if link.order is not None for each in link.others}
    plain: dict[str, str] = {users_name(name): name for name in ours}  # of two, the code that was compiled
    for name, module in theirs.items():
        told = mapped(users_name(name), match)
        wanted: str | None = None if told is None else plain.get(told, told)
        same: str = plain.get(users_name(name)) or name
        if id(module) in known:
            modules[name] = known[id(module)]
        elif wanted is not None and wanted in ours:
            modules[name] = wanted
        elif name in owners and _holds(owners[name], name, found):
            modules[name] = owners[name]
        elif isinstance(module, torch.nn.Embedding) and isinstance(ours.get(table := reordered_table(name, found.values())), torch.nn.Embedding):
            modules[name] = table
        elif wanted is None and same in ours and name not in reordered:  # with reordered rows, the results are reordered too
            modules[name] = same
    owned = [owner(each) for each, _ in other.named_parameters() if mapped(users_name(each), match) is None]
    if owners.get("") and _holds(owners[""], "", found):  # a model whose weights are those of a part of the other model
        modules[""] = owners[""]
    for name in sorted(theirs, key=lambda each: -each.count(".")):
        held = [each for link in found.values() if any(_within(one, name) for one in link.others) for each in link.models]
        if name and held and name not in modules and (name not in reordered or len(set(map(owner, held))) > 1):  # not a layer for a layer
            start = next((modules[each] for each in theirs if modules.get(each) and owner(each) == name), held[0])
            if (holder := _holder(name, start, found)) is not None and holder in ours:
                modules[name] = holder
    for name in (each for each in owned if each and each not in reordered):
        below = _named_below(name, modules.get(owner(name)), found)
        if below is not None and below in ours and (name not in modules or _within(modules[name], below)):
            modules[name] = below
    return modules


def _named_below(name: str, parent: str | None, found: Mapping[str, Link]) -> str | None:
    """The module of `model` that has the name's last part below the parent's counterpart, if its weights are matched with none elsewhere in `other`.

    It may hold more weights: `other` may have folded them into one, as where an adapter was merged.
    """
    if parent is None:
        return None
    below = ".".join(filter(None, (parent, name.rpartition(".")[2])))
    inside = [link for link in found.values() if any(_within(each, below) for each in link.models)]
    return below if all(_within(each, name) for link in inside for each in link.others) else None


def _holder(parent: str, wanted: str, found: Mapping[str, Link]) -> str | None:
    """The module of `model` around a weight that holds exactly the weights which `parent` holds in `other`. With more it would compute more."""
    held = {model for link in found.values() if all(_within(each, parent) for each in link.others) for model in link.models}
    linked = {model for link in found.values() for model in link.models}
    while wanted:
        wanted = owner(wanted)
        under = {each for each in linked if _within(each, wanted)}
        if not under < held:
            return wanted if under == held else None
    return None


def _holds(wanted: str, name: str, found: Mapping[str, Link]) -> bool:
    """Whether a module of `model` holds all weights of one of `other`."""
    return all(_within(model, wanted) for link in found.values() if any(_within(each, name) for each in link.others) for model in link.models)


def _within(name: str, module: str) -> bool:
    return not module or name.startswith(f"{module}.")


def _names(module: torch.nn.Module) -> list[str]:
    named = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    named += [*(name for name, _ in module.named_modules() if name), *(name for name, _ in module.named_buffers())]
    return list(dict.fromkeys(users_name(name) for name in named))


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "") or "no parts with names"
