"""Tasks on text, for models that read tokens."""
