"""What `kernel-fallback` says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "kernel-fallback",
    "a candidate calls its reference: what is judged is that call",
    "write the kernel, or judge one that does not fall back",
)
