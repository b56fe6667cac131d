"""What a site's owner allows: the contract, and what is held against it: a plan, an upload, what a run spends."""
