"""All that protects clients and their rows: what is promised, and the clip, noise, masks and accounts that keep it."""
