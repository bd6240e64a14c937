"""Measures the time and memory of training steps. Nothing of precheck runs inside a timed step."""
