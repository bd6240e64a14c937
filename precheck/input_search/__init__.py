"""The parts of `search`: judges an input, follows the gradient to a failing one, shrinks it, and writes it as code."""
