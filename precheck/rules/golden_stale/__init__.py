"""When the rule fires, what to do about it, and its rank."""

MEANING = "the golden was recorded with other inputs, weights or code"
REMEDY = "pytest --golden-refresh=changed if you meant the change; if you changed nothing, call torch.manual_seed before model and inputs are made"
RANK = 220
