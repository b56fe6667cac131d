"""Uploads that must not leave a site, by the work behind them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from rondo.engine.transport import Answer
from rondo.federation.site.contract import terms
from rondo.federation.site.contract.document import Contract


@dataclass(frozen=True)
class Withheld:
    """Gives the reason why an upload must not leave, by the work behind it and the tensors in it."""

    contract: Contract
    rows: int
    """The client's training rows."""
    examples: int
    """The examples that they are trained as: windows of long rows, for instance."""
    embedded: Collection[str]
    noted: Callable[[], str | None]
    """Writes the work behind an upload down, over all runs; gives the reason if none may leave for what is there."""

    def __call__(self, answer: Answer) -> str | None:
        rows, steps = self.contract.training.least_rows, self.contract.training.least_steps
        for done, seen in answer.work:
            if done and (min(seen, self.rows) < rows or (done < steps and seen < self.examples)):
                return f"less is behind it than the {rows} rows and {steps} steps that its owner wants"
        assert answer.upload is not None
        assert not isinstance(answer.upload, bytes)
        reason = terms.refusal(terms.of_tensors(self.contract, answer.upload.params.keys(), self.embedded))
        return self.noted() if reason is None else reason
