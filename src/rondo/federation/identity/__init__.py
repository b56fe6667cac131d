"""Identities of a federation's parties: keys, certificates, and the roster."""

from rondo.federation.extra import needed

needed(["cryptography"])
