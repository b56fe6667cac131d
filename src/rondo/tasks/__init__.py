"""Tasks: rows to examples, examples to batches, outputs to losses and scores."""
