"""Execution of code that a model wrote, in processes that can do nothing but compute and answer."""
