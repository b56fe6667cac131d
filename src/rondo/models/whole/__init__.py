"""Networks without a hub, and networks whose tensors are trained whole."""
