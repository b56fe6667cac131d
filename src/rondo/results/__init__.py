"""What follows a run: evaluate, predict, export, adapt, push, serve."""
