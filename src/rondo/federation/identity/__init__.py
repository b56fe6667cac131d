"""Who takes part in a federation: keys, certificates, and the roster."""

from rondo.federation.extra import needed

needed(["cryptography"])
