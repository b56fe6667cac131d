"""TensorBoard: a file of events in the run directory, ``tensorboard/``. It needs no torch and no TensorFlow."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping

from rondo.runs.tracking.tracker import About, Ending


class TensorBoard:
    """Events cannot be taken back, so a run that goes on gets its file anew, from the first round."""

    def begin(self, about: About) -> int:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = about.folder / "tensorboard"
        if folder.exists():
            shutil.rmtree(folder)
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))
        return 0

    def round(self, done: int, values: Mapping[str, float]) -> None:
        numbers = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=done, summary=self._summary(value=numbers)))
        self._writer.flush()

    def close(self, ending: Ending) -> None:
        self._writer.close()
