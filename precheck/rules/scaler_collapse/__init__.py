"""The rule `scaler-collapse`."""
