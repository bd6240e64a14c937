"""A gradient is wrong, for an input that requires one (or any floating input if none does), with random incoming gradients."""

MEANING = "a kernel's forward pass is right and a gradient is wrong or missing"
REMEDY = "derive each input's gradient again, and run torch.autograd.gradcheck on small inputs in float64"
GIVEN_BY = "kernels"
