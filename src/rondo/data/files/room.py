"""The limits and the form of what is read: the memory that rows may take, since a small compressed file can expand to
gigabytes, and the separator and encoding of text files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rondo.config.inputs import DataConfig
from rondo.errors import ConfigError


class OtherForm(Exception):
    """A file that is whole, and has its rows in another form than is read. The message says which, and the remedy."""


@dataclass(frozen=True)
class TextForm:
    """The form of text files: the ``encoding``, and the ``separator`` of columns; None for that of the file's kind.
    ``keys``: what stands before these two names where the user sets them."""

    separator: str | None = None
    encoding: str = "utf-8"
    keys: str = "data."

    @property
    def codec(self) -> str:
        """The encoding to decode with: a UTF-8 file may begin with a byte order mark, as Excel writes it."""
        return "utf-8-sig" if self.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else self.encoding


class Room:
    """The memory left for rows, of ``megabytes`` in all. ``key``: the key that raises the limit; None if none does.
    ``form``: that of text files."""

    def __init__(
        self,
        megabytes: int = DataConfig().max_read_mb,
        key: str | None = "data.max_read_mb",
        form: TextForm | None = None,
    ) -> None:
        self.megabytes, self.left, self.key, self.form = megabytes, megabytes << 20, key, form or TextForm()

    @classmethod
    def of(cls, data: DataConfig) -> Self:
        """The room that ``[data]`` gives."""
        return cls(data.max_read_mb, form=TextForm(data.separator, data.encoding))

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
