"""The sum of a round's uploads under ``[privacy]``, and who takes part in it."""
