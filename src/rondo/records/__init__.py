"""A run directory: its files, who writes them and who reads them. Imports no torch.

::

    schema        the fields of every JSON file, for the writer and for readers
    directory     the files, and how they are written and read
    manifest      the environment of a run, and what must not change before it goes on
    durable       files that are complete or absent; private_file: those that their owner alone reads
    read          a run, or the runs in a folder, for people
    curve         a number after each round, and its mean over runs with the interval
    paired        differences paired by seed: mean, 95 % interval, Holm's correction
    summary       the numbers at the end of a run
"""
