"""The audit of a site: a line per letter that left it or came to it, and an account for people."""
