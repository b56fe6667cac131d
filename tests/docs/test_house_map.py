"""The map of the house is that of the rooms."""

from __future__ import annotations

from house_map import PAGE, ROOT, purpose, text


def test_map_is_up_to_date() -> None:
    """Run tests/docs/house_map.py after a change to a room."""
    assert PAGE.read_text(encoding="utf-8") == text()


def test_every_room_says_what_it_is_for() -> None:
    rooms = (ROOT / "src" / "rondo").glob("*/__init__.py")
    assert [room for room in rooms if not 10 < len(purpose(room)) < 140] == []
