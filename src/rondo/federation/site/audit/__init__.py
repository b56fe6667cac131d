"""What has left a site and come to it: a line per letter, and the account of them for people."""
