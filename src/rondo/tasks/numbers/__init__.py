"""Tasks on rows of numbers."""
