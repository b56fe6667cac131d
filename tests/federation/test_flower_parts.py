"""Flower's private parts: each by its name, so that another version says which one has gone."""

from __future__ import annotations

import ast
import importlib
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

import rondo
from rondo.federation import flower
from rondo.federation.server.line.links import Links

SOURCE = Path(rondo.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
OF_THE_STATE = (
    "_check_stored_messages",
    "acknowledge_node_heartbeat",
    "activate_node",
    "activate_task",
    "claim_task",
    "create_node",
    "create_run",
    "deactivate_node",
    "delete_messages",
    "get_message_ins",
    "get_node_info",
    "lock",
    "message_ins_store",
    "node_public_key_to_node_id",
    "run_ids",
    "start_session",
    "store_message_and_object_tree",
    "store_message_ins",
    "store_message_res",
    "store_object",
    "task_token_store",
)
"""Members of Flower's state in memory that ours calls or replaces."""
OF_MESSAGES = (
    "get_all_nested_objects",
    "get_object_head_values_from_object_content",
    "get_object_id",
    "get_object_tree",
    "iterate_object_tree",
    "no_object_id_recompute",
)
HANDLERS = (
    "confirm_message_received",
    "pull_messages",
    "pull_object",
    "push_messages",
    "push_object",
    "send_node_heartbeat",
)


def imported(path: Path) -> list[tuple[str, str]]:
    """Modules of Flower and their parts that a file imports."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", alias.name) for node in nodes for alias in node.names if is_flower(node.module or "")]


def is_flower(module: str) -> bool:
    return module.partition(".")[0] == "flwr"


def here(owner: object, name: str, of: str) -> None:
    assert hasattr(owner, name), f"flwr {version('flwr')} has no {of}.{name}, which rondo.federation.flower names"


@pytest.mark.parametrize(("module", "name"), imported(Path(flower.__file__)))
def test_part_is_there(module: str, name: str) -> None:
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        pytest.fail(f"flwr {version('flwr')} has no {module}, which rondo.federation.flower names")
    if not hasattr(owner, name):
        importlib.import_module(f"{module}.{name}")
    here(owner, name, module)


@pytest.mark.parametrize("name", OF_THE_STATE)
def test_part_of_the_state_is_there(name: str) -> None:
    here(Links(), name, "InMemoryLinkState")
    if callable(getattr(flower.InMemoryLinkState, name, None)):
        here(flower.InMemoryLinkState, name, "InMemoryLinkState")


@pytest.mark.parametrize("name", OF_MESSAGES)
def test_part_of_messages_is_there(name: str) -> None:
    here(flower.inflatable_object, name, "inflatable_object")


@pytest.mark.parametrize("name", HANDLERS)
def test_handler_is_there(name: str) -> None:
    here(flower.fleet_handlers, name, "fleet_handlers")


def test_number_of_a_message_is_its_digest() -> None:
    metadata = flower.Metadata(1, "", 1, 2, "", "", 0.0, 9.0, "train")
    message = flower.make_message(metadata, content=RecordDict())
    assert isinstance(message, Message)
    assert flower.number(message) == message.metadata.message_id, "Metadata has no _message_id"


def test_no_other_file_knows_a_private_part() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != Path(flower.__file__)]
    private = {f"{path.relative_to(SOURCE)}: {module}" for path in files for module, _ in imported(path)} - {
        f"{path.relative_to(SOURCE)}: {module}" for path in files for module in PUBLIC
    }
    assert private == set()
