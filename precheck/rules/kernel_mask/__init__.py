"""The reference with another mask gives the candidate's result, or the candidate is right if nothing is masked."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-mask",
    "a kernel masks other elements than its reference does, or lets what is masked through",
    "compare indices as the reference does, and give -inf to what is masked before the softmax",
    given_by="kernels",
)
