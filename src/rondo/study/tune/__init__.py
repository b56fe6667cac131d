"""Searches one grid for several methods, on rows held out of the training rows. Imports no torch until a trial starts.

::

    tuning      a search: grid, seeds, share held out; halving over seeds; the values, as a file has them
    methods     a configuration with a table per method: searched, and written with its values
"""
