"""Runs the rules on what the analyses found, and makes one report of their findings. Runs no model and knows nothing of pytest."""
