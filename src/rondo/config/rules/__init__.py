"""Rules that a configuration is held to when it is loaded. Imports no torch."""
