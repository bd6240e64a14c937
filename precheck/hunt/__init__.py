"""The hunt for inputs that break a model: one input judged, shrunk to the elements that matter, and written as code."""
