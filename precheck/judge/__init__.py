"""Pure functions from records to findings: no model, no pytest."""
