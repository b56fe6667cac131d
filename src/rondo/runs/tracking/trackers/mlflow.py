"""MLflow: a server, by ``MLFLOW_TRACKING_URI``; without one, the database ``mlflow.db`` beside the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from rondo.runs.tracking.tracker import About, Ending

_ID = "rondo.id"
"""The tag by which the run is found again: MLflow gives its own ids."""
_PARAMETERS, _LENGTH = 100, 500
"""Most parameters that are logged at once, and most characters of each."""


class MLflow:
    """A round is one batch, which is stored whole or not at all. The server says which rounds it has."""

    def begin(self, about: About) -> int:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{about.folder.parent / 'mlflow.db'}"
        self._client: Any = MlflowClient(tracking_uri=place)
        self._metric = Metric
        experiment = self._experiment(about)
        runs = self._client.search_runs([experiment], filter_string=f"tags.`{_ID}` = '{about.id}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            history = self._client.get_metric_history(self._run, "round")
            return max((point.step for point in history), default=0)
        run = self._client.create_run(experiment, tags={_ID: about.id}, run_name=about.name)
        self._run = run.info.run_id
        texts = [(key, str(value)[:_LENGTH]) for key, value in about.settings.items()]
        for first in range(0, len(texts), _PARAMETERS):
            some = [Param(key, text) for key, text in texts[first : first + _PARAMETERS]]
            self._client.log_batch(self._run, params=some)
        return 0

    def _experiment(self, about: About) -> str:
        found = self._client.get_experiment_by_name(about.project)
        if found is not None:
            return str(found.experiment_id)
        artifacts = None if os.environ.get("MLFLOW_TRACKING_URI") else (about.folder.parent / "mlruns").as_uri()
        try:
            return str(self._client.create_experiment(about.project, artifact_location=artifacts))
        except Exception:  # another run has just made it
            found = self._client.get_experiment_by_name(about.project)
            if found is None:
                raise
            return str(found.experiment_id)

    def round(self, done: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        points = [self._metric(name, value, now, done) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=points)

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._run, status="FINISHED" if ending == "finished" else "KILLED")
