"""The steps of a local training, plain or private."""
