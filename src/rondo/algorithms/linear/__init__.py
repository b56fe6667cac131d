"""Methods for linear problems, with exact steps."""
