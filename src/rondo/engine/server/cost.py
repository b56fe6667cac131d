"""The server's own part in a round: seconds and memory of an aggregation, without the clients' training.

RoLoRA's Table 15 has the mean seconds of the server's aggregation per round, FLoRG's Table 8 the memory of a method.
In a simulation both are mixed with the clients': uploads are trained while the algorithm asks for them. So the clock
and the count stop while an upload is waited for.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rondo.algorithm import Upload
from rondo.params import Packed, Params


class AggregationCost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts within ``with``, in the thread that entered it. Results are those without it, bit for bit.

    - ``seconds``: by the clock, between uploads. Where cohorts train on other threads meanwhile, they slow it down.
    - ``peak_bytes``: the most bytes, at any moment, of uploads that the algorithm holds and of tensors that it has
      made, beside its state from before the round (``known``). Every tensor's memory counts once, however many views
      it has. The workspace within one of torch's operations is not seen.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds, self.peak_bytes = 0.0, 0
        self._bytes, self._began = 0, 0.0
        self._alive: dict[int, weakref.ref[Any]] = {}
        """Storages and uploaded tensors, by number. A reference removes its entry when its object goes."""
        for tensor in known:
            self._note(tensor.untyped_storage(), 0)

    def __enter__(self) -> AggregationCost:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._began = time.perf_counter()
        return self

    def __exit__(self, *error: Any) -> None:
        self.seconds += time.perf_counter() - self._began
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, Tensor):
                storage = made.untyped_storage()
                self._note(storage, storage.nbytes())
        return result

    def given(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        """``uploads``, whose arrival costs nothing. Each is passed on as tensors of its own over the same memory, since
        others may hold the upload longer than the algorithm does. To be used within ``with``."""
        arriving = iter(uploads)
        while True:
            self.__exit__(None, None, None)
            try:
                upload = next(arriving, None)
                if upload is None:
                    return
                upload = self._aliased(upload)
            finally:
                self.__enter__()
            yield upload
            del upload

    def _aliased(self, upload: Upload) -> Upload:
        if isinstance(upload.params, Packed):
            packed = Packed(upload.params.vector.detach(), upload.params.layout)
            params: Params = packed
            tensors = [packed.vector]
        else:
            params = {n: t.detach() for n, t in upload.params.items()}
            tensors = list(params.values())
        for tensor in tensors:
            self._note(tensor.untyped_storage(), 0)
            self._note(tensor, tensor.nbytes)
        return replace(upload, params=params)

    def _note(self, thing: Any, size: int) -> None:
        number = id(thing)
        if number in self._alive:
            return

        def gone(_: Any) -> None:
            del self._alive[number]
            self._bytes -= size

        self._alive[number] = weakref.ref(thing, gone)
        self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)
