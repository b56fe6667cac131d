"""Methods for low-rank factors."""
