"""The rule `scaler-skip`."""
