"""A site of a federation."""

from rondo.federation import needed

needed("flwr", "cryptography")
