"""Pairs of answers to one prompt, of which one is better: DPO, and reward models."""
