"""Sites and a server over TLS: identities, contracts, letters, and what a site lets out."""
