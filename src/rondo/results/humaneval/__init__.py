"""Execution of code that a model wrote, in two sandboxes of bubblewrap that can do nothing but compute and answer."""
