"""Any algorithm state to safetensors and JSON, and back, bit for bit.

A state is a tree of frozen dataclasses, dicts with string keys, tuples, lists, tensors, numbers, strings, booleans and
None. The tree becomes a JSON skeleton whose leaves point at tensors. Only dataclasses that the caller expects are
rebuilt, so a file cannot name a class of its own choosing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from rondo.lowrank import GrowingSum, LowRank


def pack(tree: Any) -> bytes:
    """``tree`` as the bytes of one safetensors file, with the skeleton in its metadata. Raises TypeError for any value
    that is not listed above."""
    tensors: dict[str, Tensor] = {}
    skeleton = _skeleton(tree, tensors, "state")
    return safetensors.torch.save(tensors, metadata={"skeleton": json.dumps(skeleton)})


def unpack(data: bytes, like: Any) -> Any:
    """The tree in ``data``. ``like`` is any tree of the same kind: only its dataclasses, LowRank and GrowingSum are
    rebuilt. Raises ValueError where ``data`` is not a packed tree or names another dataclass."""
    allowed = {t.__name__: t for t in (LowRank, GrowingSum, *_dataclasses_in(like))}
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        del data  # a letter of gigabytes is in memory often enough
        return _rebuild(json.loads(header["__metadata__"]["skeleton"]), tensors, allowed)
    except Exception as error:  # damaged bytes can fail anywhere: in the parser, in a look-up, in a constructor
        raise ValueError(f"not a saved state: {type(error).__name__}: {error}") from error


def canonical(tree: Any) -> Any:
    """``tree`` with every tensor contiguous and in aligned memory of its own, as :func:`unpack` returns it.

    The last bit of a matrix product can depend on the memory layout, so a run must go on with the layout that it would
    have after a resume. Nor does a slice keep the memory of a whole tensor alive.
    """
    if isinstance(tree, Tensor):
        tensor = tree.contiguous()
        if tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.data_ptr() % _ALIGNED == 0:
            return tensor
        return tensor.clone()
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [f.name for f in dataclasses.fields(tree)]
        return dataclasses.replace(tree, **{n: canonical(getattr(tree, n)) for n in names})
    if isinstance(tree, Mapping):
        return {k: canonical(v) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(canonical(v) for v in tree)
    return tree


_ALIGNED = 64
"""Alignment of torch's tensors in bytes."""


def tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for f in dataclasses.fields(tree):
            yield from tensors(getattr(tree, f.name))
    elif isinstance(tree, (Mapping, tuple, list)):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(value)


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal bit for bit, types, dtypes and shapes included."""
    left: dict[str, Tensor] = {}
    right: dict[str, Tensor] = {}
    # Compare as JSON text, so that NaN equals itself, -0.0 differs from 0.0, and 1, 1.0 and True differ.
    one, other = (json.dumps(_skeleton(t, leaves, "state"), sort_keys=True) for t, leaves in ((a, left), (b, right)))
    if one != other:
        return False
    return all(
        t.dtype == right[n].dtype and t.shape == right[n].shape and _bits(t).equal(_bits(right[n]))
        for n, t in left.items()
    )


def _bits(tensor: Tensor) -> Tensor:
    """The tensor's bytes, so that NaN equals itself and -0.0 differs from 0.0."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _escaped(key: str) -> str:
    """As in a JSON pointer, so that the keys "a/b" and "a" then "b" name different tensors."""
    return key.replace("~", "~0").replace("/", "~1")


def _skeleton(node: Any, tensors: dict[str, Tensor], path: str) -> Any:
    if isinstance(node, Tensor):
        # Clone, because safetensors refuses tensors that share memory.
        tensors[path] = node.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if node is None or isinstance(node, (bool, int, float, str)):
        return {"value": node}
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {
            f.name: _skeleton(getattr(node, f.name), tensors, f"{path}/{f.name}") for f in dataclasses.fields(node)
        }
        return {"dataclass": type(node).__name__, "fields": fields}
    if isinstance(node, Mapping):
        if not all(isinstance(k, str) for k in node):
            raise TypeError(f"{path}: the keys of a mapping in a state must be strings")
        return {"dict": {k: _skeleton(v, tensors, f"{path}/{_escaped(k)}") for k, v in node.items()}}
    if isinstance(node, (tuple, list)):
        kind = "tuple" if isinstance(node, tuple) else "list"
        return {kind: [_skeleton(v, tensors, f"{path}/{i}") for i, v in enumerate(node)]}
    raise TypeError(f"{path}: a state cannot hold a {type(node).__name__}")


def _rebuild(node: Any, tensors: dict[str, Tensor], allowed: Mapping[str, type]) -> Any:
    match node:
        case {"tensor": name}:
            # Clone into memory that torch aligns. safetensors leaves a tensor where it is in the file, and the last bit
            # of a product can depend on that.
            return tensors.pop(name).clone()
        case {"value": bool() | int() | float() | str() | None as value}:
            return value
        case {"dict": items}:
            return {k: _rebuild(v, tensors, allowed) for k, v in items.items()}
        case {"tuple": items}:
            return tuple(_rebuild(v, tensors, allowed) for v in items)
        case {"list": items}:
            return [_rebuild(v, tensors, allowed) for v in items]
        case {"dataclass": name, "fields": fields} if name in allowed:
            return allowed[name](**{k: _rebuild(v, tensors, allowed) for k, v in fields.items()})
        case {"dataclass": name}:
            raise ValueError(f"the saved state has a {name}, expected one of {sorted(allowed)}")
    raise ValueError("not a saved state: its skeleton is malformed")


def _dataclasses_in(tree: Any) -> Iterable[type]:
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        yield type(tree)
        for f in dataclasses.fields(tree):
            yield from _dataclasses_in(getattr(tree, f.name))
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _dataclasses_in(value)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            yield from _dataclasses_in(value)
