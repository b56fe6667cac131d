"""The contract of a site's owner, and the checks of a plan, an upload and a run's spending against it."""
