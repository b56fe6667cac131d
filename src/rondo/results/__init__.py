"""Commands on a finished run: evaluate, predict, export, adapt, push, serve."""
