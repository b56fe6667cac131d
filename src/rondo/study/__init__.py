"""Many runs in a folder: which are there, which are missing, made side by side, and what they say together.

::

    runs        a run of a study, and the runs of a folder: there, missing, stopped, made
    parallel    runs side by side, each in a process
    score       the score of a run, from the records of its rounds
    pictures    lines that are means over seeds
    compare     several methods on the same rows
    tune        one grid for several methods, on rows held out
    claims      the papers' claims, from runs to verdicts
"""
