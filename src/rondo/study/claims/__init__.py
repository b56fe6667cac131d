"""Claims of the papers, each from its own configuration to a verdict: what would count is written before the runs.

::

    entry      a claim's file: configuration, arms, contrasts, seeds
    trials     the runs of an entry, missing ones made, those that are there kept; rates by rondo.study.tune
    verdict    what the differences say of a claim
    page       the page of an entry, its picture, and the table of all
"""
