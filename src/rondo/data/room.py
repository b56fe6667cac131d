"""The memory for rows, which a small file could fill."""

from __future__ import annotations

from rondo.config.inputs import DataConfig
from rondo.errors import ConfigError


class Room:
    """The memory left for rows, of ``data.max_read_mb`` in all. A file of a few hundred bytes can hold gigabytes."""

    def __init__(self, megabytes: int = DataConfig().max_read_mb) -> None:
        self.megabytes, self.left = megabytes, megabytes << 20

    def take(self, size: int, name: str) -> None:
        """Take ``size`` bytes for rows of ``name``. Raises :class:`ConfigError` if so many are not left."""
        self.left -= size
        if self.left < 0:
            message = f"the rows of {name!r} take more memory than the {self.megabytes} MiB of this key: raise it if "
            raise ConfigError.at("data.max_read_mb", message + "they should be so many, or name another file")
