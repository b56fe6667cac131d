"""Sources of modules and weights: a checkpoint, or an object that a program gives."""
