"""Identities of a federation's parties: keys, certificates, and the roster."""

from rondo.federation import needed

needed("cryptography")
