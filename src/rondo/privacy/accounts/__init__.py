"""The accounts of spent privacy: epsilon of sums and of private steps."""
