"""The runs of an entry: which are missing, what they cost, and the scores of those that are there.

::

    OUT/NAME/ARM-seed-N-DIGEST/         an ordinary run directory per arm and seed
    OUT/NAME/tuning/ARM-seed-N-DIGEST/  one per arm, point of the grid and seed
    OUT/NAME/stopped.json               runs that could not finish, with the reason
    OUT/NAME/tuned.json                 what a search elsewhere has chosen, where its trials are not here
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from rondo.errors import ConfigError
from rondo.records.curve import Curve
from rondo.study.claims import entry as entries
from rondo.study.claims.entry import Entry
from rondo.study.runs import Runs, Trial, place
from rondo.study.tune.tuning import Chosen, Kept, Point, Search


class Trials(Runs):
    """The runs of an entry under ``out``."""

    def __init__(self, target: str, entry: Entry, out: Path, data: Path) -> None:
        """``target``: the entry's name, or the file of one of the user's own. ``data``: the folder of its data. Raises
        :class:`ConfigError` for files that are not there, and for a name that cannot be that of a page."""
        self.target, self.name = Path(target).name, Path(target).stem
        if problem := _no_page(self.target, self.name):
            raise ConfigError.at("NAME", f"{target!r} {problem}: rename the file")
        super().__init__(out / self.name)
        self.entry, self.data = entry, data
        self._kept = Kept.of(self.folder)
        self._search = None
        if entry.tuning is not None:
            self._search = Search(self, entry.tuning, entry.score_of_trials, self._tuning_trial)
        for file, where in entry.files.items():
            if not (data / file).exists():
                message = f"{self.name} needs {file!r}, which is not in {str(data)!r}; it is to be had from {where}"
                raise ConfigError.at("--data", message)

    def missing(self) -> list[Trial]:
        """The runs to make next: those of the tuning until every arm is tuned, then one per arm and seed."""
        return self.missing_of_tuning() or [trial for trial in self.runs() if not self.done(trial)]

    def missing_of_tuning(self) -> list[Trial]:
        """The trials to make next, until every arm is tuned."""
        if self._search is None:
            return []
        arms = [arm for arm in self.entry.searched if self.kept(arm) is None]
        return [trial for arm in arms for trial in self._search.missing(arm)]

    def kept(self, arm: str) -> Chosen | None:
        """The choice of an earlier search for ``arm``; None if its grid or configuration has changed."""
        chosen = self._kept.arms.get(arm)
        return chosen if chosen is not None and chosen.digest == self.entry.digest(arm) else None

    def stale(self) -> list[str]:
        """The arms whose values were chosen for another grid, score or configuration."""
        return [arm for arm in self._kept.arms if arm not in self.entry.searched or self.kept(arm) is None]

    def runs(self) -> list[Trial]:
        """The runs whose scores count, seed by seed. All arms must be tuned."""
        points = {arm: self.tuned(arm) for arm in self.entry.arms}
        return [self._trial(arm, seed, point) for seed in self.entry.seeds for arm, point in points.items()]

    def tuned(self, arm: str) -> Point:
        """The point of the grid that ``arm`` takes: the one beside the runs, else that of the search, which must be
        finished. An arm that is not searched has its values in its own table."""
        if self._search is None or arm not in self.entry.searched:
            return {}
        kept = self.kept(arm)
        return self._search.point(arm) if kept is None else kept.values

    def is_untold(self, arm: str) -> bool:
        """Whether several points of the grid were tried for ``arm`` and all trials score the same, so that the search
        chose none of them."""
        if self._search is None or arm not in self.entry.searched:
            return False
        tried = (self.kept(arm) or self._search.chosen(arm, "")).tried
        return len(tried) > 1 and len({score for point in tried for score in point.scores}) == 1

    def chosen(self) -> dict[str, Chosen]:
        """The point of each arm by the search, which must be finished, with the scores of its trials."""
        assert self._search is not None, "there is no tuning"
        digests = {arm: self.entry.digest(arm) for arm in self.entry.searched}
        return {arm: self.kept(arm) or self._search.chosen(arm, of_arm) for arm, of_arm in digests.items()}

    def tuned_file(self) -> bytes:
        """The search, which must be finished, as ``tuned.json`` for those who have not its trials."""
        seconds = math.fsum(self.took("tuning")) or self._kept.seconds
        return Kept(seconds=round(seconds, 1), arms=self.chosen()).model_dump_json(indent=1).encode()

    def seconds(self) -> float:
        """Seconds of all runs that are missing. Later halves of a tuning are not counted."""
        tuning = self.missing_of_tuning()
        counted = len(self.entry.arms) * len(self.entry.seeds)
        return self.seconds_of_a_run() * (len(tuning) + counted if tuning else len(self.missing()))

    def seconds_of_a_run(self) -> float:
        """The mean of those that are there, trials included, or what the entry says."""
        took = self.took()
        return statistics.fmean(took) if took else self.entry.seconds

    def spent(self) -> float:
        """Seconds of all runs that are there, and of their tuning, here or elsewhere."""
        return math.fsum(self.took()) + (0.0 if self.took("tuning") else self._kept.seconds)

    def tried(self) -> int:
        """The trials of the tuning that are finished."""
        return len(list((self.folder / "tuning").glob("*/summary.json")))

    def here(self) -> list[Trial]:
        """The runs and trials of the entry as it is now, as far as it is tuned."""
        trials = [] if self._search is None else [t for arm in self.entry.searched for t in self._search.trials(arm)]
        return trials if self.missing_of_tuning() else [*trials, *self.runs()]

    def stopped_here(self) -> dict[str, str]:
        """Those of them that could not finish, with the reason."""
        here = [self._key(trial) for trial in self.here()]
        return {folder: why for folder, why in self.stopped.items() if folder in here}

    def curve(self, trial: Trial) -> Curve:
        """The values of a run that is done. Raises :class:`ConfigError` if its record has none."""
        return self.entry.score.curve(trial)

    def _trial(self, arm: str, seed: int, point: Point) -> Trial:
        folder = place(self.folder, arm, seed, self.entry.run(arm, seed, Path(), point, check=False))
        return Trial(arm, seed, self.entry.run(arm, seed, self.data, point), folder, point)

    def _tuning_trial(self, arm: str, seed: int, point: Point) -> Trial:
        assert self.entry.tuning is not None
        share = self.entry.tuning.held_out
        more = {**self.entry.tuning.config, **point, **({"data.validation_fraction": share} if share else {})}
        folder = place(self.folder / "tuning", arm, seed, self.entry.run(arm, seed, Path(), more, check=False))
        return Trial(arm, seed, self.entry.run(arm, seed, self.data, more), folder, point, True, bool(share))


def _no_page(target: str, name: str) -> str | None:
    """The reason why no page can have the name of the file ``target``; None if one can."""
    if target != name and name in entries.names():
        return "has the name of an entry that comes with Rondo, whose runs and page it would share"
    if name.lower() in ("all", "readme", "pages") or not name.strip("."):
        return "has a name that a folder of pages takes for another use"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "is no name in UTF-8"
    return None
