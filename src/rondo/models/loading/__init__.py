"""Where modules and weights come from: a checkpoint, or an object that a program gives."""
