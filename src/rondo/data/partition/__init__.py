"""How rows are dealt to clients."""
