"""A limit on the memory that rows may take: a small compressed file can expand to gigabytes."""

from __future__ import annotations

from rondo.config.inputs import DataConfig
from rondo.errors import ConfigError


class Room:
    """The memory left for rows, of ``megabytes`` in all. ``key``: the key that raises the limit; None if none does."""

    def __init__(self, megabytes: int = DataConfig().max_read_mb, key: str | None = "data.max_read_mb") -> None:
        self.megabytes, self.left, self.key = megabytes, megabytes << 20, key

    def take(self, size: int, name: str) -> None:
        """Take ``size`` bytes for rows of ``name``. Raises :class:`ConfigError` if so many are not left."""
        self.left -= size
        if self.left < 0:
            taken = f"the rows of {name!r} take more memory than the {self.megabytes} MiB"
            if self.key is None:
                raise ConfigError.at(name, f"{taken} that such a file may: name another one, or a part of it")
            raise ConfigError.at(
                self.key, f"{taken} of this key: raise it if they should be so many, or name another file"
            )
