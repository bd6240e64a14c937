"""What `bitwise` says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "bitwise",
    "two are equal bit for bit",
    "nothing: both are the same",
)
