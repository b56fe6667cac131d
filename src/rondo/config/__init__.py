"""The configuration of a run. Imports no torch.

>>> from rondo import config
>>> cfg = config.load({"partition": {"clients": 3}, "clients": {"per_round": 2}})
>>> isinstance(cfg, config.RunConfig)
True

Each section is an object:

>>> isinstance(cfg.adapter, config.AdapterConfig), cfg.adapter.r
(True, 8)
>>> isinstance(cfg.data, config.DataConfig), cfg.data.validation_fraction
(True, 0.1)
>>> isinstance(cfg.partition, config.PartitionConfig), cfg.partition.clients
(True, 3)
>>> isinstance(cfg.clients, config.ClientsConfig), cfg.clients.per_round
(True, 2)
>>> isinstance(cfg.train, config.TrainConfig), cfg.train.optimizer
(True, 'adamw')
>>> isinstance(cfg.server, config.ServerConfig), cfg.server.optimizer
(True, 'none')
>>> isinstance(cfg.admission, config.AdmissionConfig), cfg.admission.clip
(True, False)
>>> isinstance(cfg.faults, config.FaultsConfig), cfg.faults.crash
(True, 0.0)
"""

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
