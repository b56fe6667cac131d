"""Every private part of Flower that the line between server and sites uses (docs/dev/adr/0017-flower.md).

Any version may lack it: ``tests/federation/test_flower_parts.py`` says by name which part has gone. Other files import
``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp``, which are public.
"""

from __future__ import annotations

from flwr.app import Message
from flwr.app.message import make_message as make_message
from flwr.app.message import remove_content_from_message as remove_content_from_message
from flwr.app.metadata import Metadata as Metadata
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.common.constant import NOOP_ACCOUNT_NAME as NOOP_ACCOUNT_NAME
from flwr.common.constant import NOOP_FLWR_AID as NOOP_FLWR_AID
from flwr.common.constant import SUPERLINK_NODE_ID as SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto as message_to_proto
from flwr.common.serde_utils import metadata_from_proto as metadata_from_proto
from flwr.proto import fleet_pb2 as fleet_pb2
from flwr.proto import heartbeat_pb2 as heartbeat_pb2
from flwr.proto import message_pb2 as message_pb2
from flwr.proto.node_pb2 import Node as Node
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState as InMemoryLinkState
from flwr.supercore.constant import HEAD_BODY_DIVIDER as HEAD_BODY_DIVIDER
from flwr.supercore.constant import NOOP_FEDERATION_ID as NOOP_FEDERATION_ID
from flwr.supercore.constant import NodeStatus as NodeStatus
from flwr.supercore.constant import TaskType as TaskType
from flwr.supercore.dependencies.version import VersionDependency as VersionDependency
from flwr.supercore.error import http_error_translator as http_error_translator
from flwr.supercore.inflatable import inflatable_object as inflatable_object
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents as inflate_object_from_contents
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore as InMemoryObjectStore
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE as PROTOBUF_MEDIA_TYPE
from flwr.superlink.federation import NoOpFederationManager as NoOpFederationManager
from flwr.superlink.servicer.fleet import fleet_handlers as fleet_handlers

LARGEST_CHUNK = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
"""Bytes of the largest part of an array."""


def number(message: Message) -> str:
    """Give ``message`` the number by which it is known, a digest of all in it, and return it."""
    message.metadata.__dict__["_message_id"] = message.object_id
    return message.object_id
