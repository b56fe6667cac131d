from typing import Any

from numpy.typing import NDArray

def add(
    total: NDArray[Any], vectors: tuple[NDArray[Any], ...], weights: tuple[float, ...], threads: int, /
) -> None: ...
