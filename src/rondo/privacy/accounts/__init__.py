"""What was spent: epsilon of sums and of private steps."""
