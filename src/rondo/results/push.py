"""A result on a model hub: shown first, and sent only when the user agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rondo.errors import ConfigError
from rondo.report.terminal import human_bytes
from rondo.runs.card import CONFIG

_OPTION = "--push"


@dataclass(frozen=True)
class Parcel:
    """Files for a repository of a hub.

    ``files``: the name and bytes of each, in the order of names. The configuration of the run is left out: it names
    folders of this machine.
    """

    folder: Path
    repository: str
    endpoint: str
    files: tuple[tuple[str, int], ...]

    def lines(self) -> list[str]:
        """The files with their sizes, the sum and the destination, to be read before anything is sent."""
        whole = sum(size for _, size in self.files)
        return [
            *(f"  {human_bytes(size):>10}  {name}" for name, size in self.files),
            f"{len(self.files)} files, {human_bytes(whole)}, for {self.endpoint}/{self.repository}, private; "
            f"{CONFIG} stays here, since it names folders of this machine",
        ]

    @property
    def card(self) -> str:
        """The text of the model card."""
        return (self.folder / "README.md").read_text(encoding="utf-8")


def check_name(repository: str) -> None:
    """Raise :class:`ConfigError` for a name that no repository has."""
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except ValueError as error:
        raise ConfigError.at(_OPTION, f"{repository!r} cannot name a repository: {error}") from None


def parcel(folder: str | Path, repository: str) -> Parcel:
    """The files in ``folder``, which an export wrote, for ``repository`` ("name" or "owner/name")."""
    from huggingface_hub import constants

    folder = Path(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CONFIG)
    sizes = tuple((path.relative_to(folder).as_posix(), path.stat().st_size) for path in files)
    return Parcel(folder, repository, constants.ENDPOINT, sizes)


def check_token() -> None:
    """Raise :class:`ConfigError` if the user has not logged in to the hub."""
    from huggingface_hub import get_token

    if get_token() is None:
        message = "there is no token for the hub: log in by hf auth login, or set HF_TOKEN; --dry-run needs none"
        raise ConfigError.at(_OPTION, message)


def send(sent: Parcel, agreed: Callable[[], bool]) -> str | None:
    """Make the repository, private if it is new, and upload the files. Returns its address; None unless ``agreed``.
    Raises :class:`ConfigError` without a token, and with the hub's reason where it refuses."""
    from huggingface_hub import HfApi

    check_token()
    if not agreed():
        return None
    api = HfApi(endpoint=sent.endpoint)
    try:
        place = api.create_repo(sent.repository, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=place.repo_id,
            folder_path=sent.folder,
            allow_patterns=[name for name, _ in sent.files],
            commit_message="Upload a result of Rondo",
        )
    except Exception as error:  # of the HTTP library and of the hub
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError.at(_OPTION, f"{sent.endpoint} has not taken {sent.repository!r}: {reason}") from None
    return str(place)
