"""Judges trials with Inf or NaN among the inputs: NaN must reach what depends on it, and the candidate is finite where the reference is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.kernels import number_kinds, reference_error
from precheck.kernels.dependence import Dependence
from precheck.kernels.running import Outcome
from precheck.kernels.trial_result import Fault, Judged, Reference
from precheck.kernels.trials import Made, Trial
from precheck.words import counted

if TYPE_CHECKING:
    from precheck.kernels.bench import Bench


def leaves_out(bench: Bench, trial: Trial) -> bool:
    """Whether the reference has an op that leaves out NaN. It says then what is right where a number is NaN."""
    return bool(bench.ops(trial) & ops.LEAVING_OUT_NAN)


def notice(judged: Judged) -> None:
    """Makes a warning of a wrong value beside a NaN that the reference leaves out. That NaN reaches what depends on it is asked, and no more."""
    if judged.fault is not None and judged.fault.kind == "values":
        judged.noticed = "kernel-contract", f"{judged.fault.text}; with a NaN among the inputs, which the reference leaves out"
    judged.fault = None


def judge(bench: Bench, judged: Judged, outcome: Outcome, reference: Reference) -> None:
    """Sets the fault of a trial with Inf or NaN.

    A number that a mask hides may be multiplied by 0 and not left out, and 0 times NaN is NaN. That is a fault if no result depends on the number,
    as on padding, or only results that share no numbers with the one that is lost, as those of another sequence. Kernels that work in chunks lose
    other results of the same sequence too. That is noticed, and no fault. So is a result that is lost of an Inf, if the reference itself has NaN in
    results that share numbers with it: a row with Inf less Inf is lost. In other sizes fewer results share numbers, as of a row that a product with a
    matrix makes shorter: there it is noticed too.
    """
    trial, among = judged.trial, number_kinds.WORDS[judged.trial.family]
    dependence: Dependence | None = None
    own = trial.family != "NaN" and any(each is not None and bool(each.isnan().any()) for each in reference.native.values.values())
    for name, native in reference.native.values.items():
        got, exact = outcome.values.get(name), reference.exact.values.get(name)
        if native is None or exact is None or got is None or not exact.is_floating_point() or got.shape != exact.shape:
            continue
        lost = ~got.isfinite() & exact.isfinite() & native.isfinite()
        gone = native.isnan() & ~got.isnan() if trial.family == "NaN" else torch.zeros_like(lost)
        if not bool((lost | gone).any()):
            continue
        dependence = dependence or Dependence(bench, trial)
        depends = dependence.of(name)
        if trial.family == "NaN":  # the reference may hide a NaN, as torch 2.15's attention does
            lost &= ~(got.isnan() & depends)
        where = f"{name}: not finite in {counted(int(lost.sum()), 'element')} where the reference is"
        if bool((lost & depends).any()) and not own:
            judged.fault = Fault("lost", name, f"{where}, with {among} among the inputs")
            return
        if bool(lost.any()):
            place = f"{among} in inputs{bench.example.leaves[trial.leaf].path}"
            if not trial.sizes and bool((lost & ~dependence.connected().get(name, torch.zeros_like(lost))).any()):
                zero = f"0 times {'NaN' if trial.family == 'NaN' else 'Inf'} is NaN"
                cure = f"{zero}, so leave it out and do not multiply it by 0: use where(), or a mask at the load"
                judged.fault = Fault("leaked", name, f"{where}, with {place} on which they do not depend; {cure}")
                return
            other = "" if trial.sizes else "; other results of the same numbers are lost in the reference too"
            judged.noticed = "kernel-mask", f"{where}, with {place}{other}"
        if bool((gone & depends).any()):
            judged.fault = Fault("NaN lost", name, f"{name}: no NaN in {counted(int((gone & depends).sum()), 'element')} computed from NaN; "
                                 "comparisons, maxima and minima drop it unless they are asked to keep it")  # fmt: skip
            return


def other_infinity(bench: Bench, trial: Trial, outcome: Outcome, reference: Reference) -> Fault | None:
    """Inf where the reference has -Inf, or the reverse. At a pole the sign may depend on that of a zero, so it has to be the same beside these
    inputs, too."""
    for name, right in reference.exact.values.items():
        got, native = outcome.values.get(name), reference.native.values.get(name)
        if right is None or got is None or native is None or not right.is_floating_point() or got.shape != right.shape:
            continue
        other = right.isinf() & (native == right) & (got == -right)
        for sign in (1, -1) if bool(other.any()) else ():
            made = reference.made or bench.make(trial)
            beside = Made([reference_error.stepped(each, None, sign) for each in made.values], made.numbers)
            moved = bench.exact_of(trial, beside).values.get(name)
            other &= (moved == right) if moved is not None and moved.shape == right.shape else False
        if bool(other.any()):
            share = f"{int(other.sum())} of {counted(other.numel(), 'element')}"
            return Fault("infinity", name, f"{name}: an infinity of the other sign than the reference's in {share}")
    return None
