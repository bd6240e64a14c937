"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "golden-stale",
    "the golden was recorded with other inputs, weights or code",
    "pytest --golden-refresh=changed if you meant the change; if you changed nothing, call torch.manual_seed before model and inputs are made",
    rank=220,
)
