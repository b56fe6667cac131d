"""Tasks on pictures."""
