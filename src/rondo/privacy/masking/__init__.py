"""Secure aggregation: the vectors that sites mask, and the letters that open their sum."""
