"""Methods for whole tensors, with or without factors beside them."""
