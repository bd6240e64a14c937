"""Faults of quantisers, of quantised weights, and of the results of quantised layers."""
