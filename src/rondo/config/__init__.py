"""The configuration of a run. Imports no torch."""

from __future__ import annotations

from rondo.config.checks import missing_files, partition_kind
from rondo.config.inputs import BUILTIN_DATA, BUILTIN_IMAGES, BUILTIN_MODEL, AdapterConfig, DataConfig, PartitionConfig
from rondo.config.load import load
from rondo.config.schema import AdmissionConfig, ClientsConfig, FaultsConfig, RunConfig, ServerConfig, TrainConfig
from rondo.errors import ConfigError, Problem

__all__ = [
    "BUILTIN_DATA",
    "BUILTIN_IMAGES",
    "BUILTIN_MODEL",
    "AdapterConfig",
    "AdmissionConfig",
    "ClientsConfig",
    "ConfigError",
    "DataConfig",
    "FaultsConfig",
    "PartitionConfig",
    "Problem",
    "RunConfig",
    "ServerConfig",
    "TrainConfig",
    "load",
    "missing_files",
    "partition_kind",
]
