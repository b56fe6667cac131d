"""Protection of clients and of their rows: what uploads add to a sum, noise, its account, and secure aggregation."""
