"""Judges a kernel by its reference: runs both on many generated inputs, computes what rounding explains, and classifies the fault that is left."""
