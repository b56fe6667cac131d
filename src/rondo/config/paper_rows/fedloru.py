"""Rows of FedLoRU: section 5.1 and appendix D.2, Tables 5 and 6 and Figure 4."""

from __future__ import annotations

from rondo.config.paper_rows.data_sets import EMPTY_OUTPUTS, IMAGES, INSTRUCTIONS
from rondo.config.paper_rows.setting import Setting

_FEDLORU = (
    "FedLoRU: Communication-Efficient Federated Low-Rank Update Algorithm and its Connection to Implicit Regularization"
)


def _fedloru_images(name: str, clients: int) -> Setting:
    data, image, label, model = IMAGES[name]
    keys = {
        "algorithm.name": "fedloru",
        "adapter.r": 128,
        "adapter.target_modules": r".*layer[1-4].*conv[12]",
        "data.max_train_rows": 50000 if name == "fashion-mnist" else 40000,
        "task.kind": "image-classification",
        "task.image": image,
        "task.label": label,
        "task.normalize": name,
        "data.source": data,
        "data.test_split": "test",
        "data.validation_fraction": 0.0,
        "partition.kind": "iid",
        "partition.clients": clients,
        "clients.per_round": clients // 2,
        "clients.weighting": "uniform",
        "train.what": "all",
        "train.optimizer": "sgd",
        "train.momentum": 0.9,
        "train.max_grad_norm": 0,
        "train.batch_size": 32,
        "train.local_epochs": 5,
    }
    tables = "Table 6" if clients == 200 else "Table 5" if name != "cifar100" else "Tables 5 and 6"
    row = f"{name}, {clients} clients, half of them in a round: section 5.1 and appendix D.2; {tables}."
    aside = "10,000 training rows are left aside, as the paper's validation set; its test set is the test split."
    restarts = 'The paper\'s two ways to start the factors anew are algorithm.restart = "random" and "momentum".'
    depth = "as in F.4" if name == "cifar100" else "ResNet-10 or ResNet-18, not stated for each data set"
    unknown = {
        "model.name": (model, depth),
        "train.schedule": (
            "cosine",
            "the paper's falls to a rate of 0.001 in 50 or all rounds, this one to zero in all",
        ),
        "adapter.rank_pattern": (
            {"layer1.*": 64},
            "the paper has rank 128 there too; a rank above the 64 channels of a layer is refused here",
        ),
        "rounds": (200, "not stated"),
        "algorithm.tau": (40, "the paper takes the best of 20, 30, ..., 80"),
        "train.lr": (0.1, "the paper takes the best of 0.3, 0.2, 0.1, 0.05 and 0.01"),
        "adapter.lora_alpha": (64, "alpha / r is 1/2, which the paper states for mFedLoRU"),
        "adapter.from_scratch": (
            True,
            "as in the official code: no frozen weight, and both factors random; the paper says that B starts at zero",
        ),
    }
    return Setting((_FEDLORU, row, aside, restarts), keys, unknown)


_FEDLORU_ALPACA = Setting(
    (_FEDLORU, "Alpaca, LLaMA2-3B, 10 clients, half of them in a round: section 5.1, appendix D.2, Figure 4"),
    {
        "algorithm.name": "fedloru",
        "algorithm.tau": 15,
        "adapter.r": 8,
        "adapter.target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        **INSTRUCTIONS,
        "data.source": "tatsu-lab/alpaca",
        "data.test_split": "",
        "partition.kind": "iid",
        "partition.clients": 10,
        "clients.per_round": 5,
        "clients.weighting": "uniform",
        "train.optimizer": "adamw",
        "train.lr": 3e-4,
        "train.batch_size": 16,
        "train.local_epochs": 1,
    },
    {
        "model.name": (
            "meta-llama/Llama-2-7b-hf",
            "there is no public LLaMA2 of 3B parameters, and 0.124 % of trained parameters (D.2) are this model's",
        ),
        "data.validation_fraction": (
            0.04,
            "for the test loss; the paper tests on 2,000 rows, and trains on 48,000 (5.1) or 50,000 (D.1)",
        ),
        **EMPTY_OUTPUTS,
        "train.weight_decay": (0.0, "not stated"),
        "train.max_grad_norm": (1.0, "not stated"),
        "rounds": (40, "not stated; Figure 4 shows 40"),
        "adapter.lora_alpha": (16, "not stated"),
        "task.max_length": (512, "not stated"),
    },
)

FEDLORU: dict[str, Setting] = {
    **{
        f"fedloru/{name}{'' if clients == 20 else f'-{clients}'}": _fedloru_images(name, clients)
        for name in IMAGES
        for clients in ((20, 100, 200) if name == "cifar100" else (20, 100))
    },
    "fedloru/alpaca": _FEDLORU_ALPACA,
}
