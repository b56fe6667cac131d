"""Searches one grid for several methods, on rows held out of the training rows. Imports no torch until a trial starts.

::

    tuning      what is searched: grid, seeds, share held out
    search      halving over seeds: the trials that are missing, and the point of each method
    proposals   points of a large grid, by optuna
    chosen      the values of a method, as a file keeps them
    methods     a configuration with a table per method: searched, and written with its values
"""
