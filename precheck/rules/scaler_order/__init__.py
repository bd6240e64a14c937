"""The rule `scaler-order`."""
