"""The same call is right with the state before the first call, or with fresh memory."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-stale",
    "a result depends on earlier calls: through a cache, a reused buffer, or memory that was never written",
    "key caches by all that they depend on, and write every element that is read",
    given_by="kernels",
)
