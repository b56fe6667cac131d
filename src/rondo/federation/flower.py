"""Every private part of Flower that the line between server and sites uses (docs/dev/adr/0017-flower.md).

Any version may lack it: ``tests/federation/test_flower_parts.py`` says by name which part has gone. Other files import
``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp``, which are public.
"""

from __future__ import annotations

from flwr.proto import fleet_pb2 as fleet_pb2
from flwr.proto import heartbeat_pb2 as heartbeat_pb2
from flwr.proto import message_pb2 as message_pb2
from flwr.proto.node_pb2 import Node as Node
from flwr.supercore.dependencies.version import VersionDependency as VersionDependency
from flwr.supercore.error import http_error_translator as http_error_translator
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE as PROTOBUF_MEDIA_TYPE
