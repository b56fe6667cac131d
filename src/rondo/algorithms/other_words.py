"""Names of methods in papers and other tools that are no method here: the keys that say the same, or the reason why
there are none. Imports no torch."""

from __future__ import annotations

_ROBUST = {
    **dict.fromkeys(("median", "fedmedian"), "median"),
    **dict.fromkeys(("trimmedmean", "fedtrimmedavg"), "trimmed-mean"),
    **dict.fromkeys(("geometricmedian", "rfa"), "geometric-median"),
    "krum": "krum",
    "multikrum": "multi-krum",
}
_SERVER = {"fedadam": "adam", "fedyogi": "yogi", "fedadagrad": "adagrad", "fedavgm": "momentum"}

_KEYS = {
    **dict.fromkeys(("loraplus", "lora+"), "train.lr_ratio, the rate of B over that of A"),
    **dict.fromkeys(("lora", "fedlora"), 'algorithm.name = "fedit", the mean of each factor'),
    **{word: f"adapter.use_{word} = true" for word in ("dora", "rslora")},
    "pissa": 'adapter.init_lora_weights = "pissa"',
    "qlora": 'model.quantization = "nf4"',
    "fedsgd": 'algorithm.name = "fedavg" with train.local_steps = 1',
    **{word: f'server.optimizer = "{optimizer}"' for word, optimizer in _SERVER.items()},
    "fedopt": "server.optimizer",
    **dict.fromkeys(("fedbuff", "fedasync"), 'clients.mode = "buffered"'),
    **{word: f'robust.rule = "{rule}"' for word, rule in _ROBUST.items()},
    **dict.fromkeys(("dpfedavg", "dpsgd"), "the section [privacy]"),
}
"""Rondo's own words."""

_ELSE = ("adalora", "ia3", "vera", "loha", "lokr", "oft", "boft", "prefixtuning", "prompttuning", "ptuning")


WORDS = frozenset({*_KEYS, *_ELSE})


def other_word(name: str) -> str | None:
    """The message about a name of another paper's or tool's, whatever its case, hyphens and blanks; None for any other
    name.

    >>> other_word("LoRA-Plus")
    "'LoRA-Plus' is not a method here; it is train.lr_ratio, the rate of B over that of A, beside a method"
    """
    word = "".join(letter for letter in name.lower() if letter not in "-_ ")
    if word in _KEYS:
        beside = "" if _KEYS[word].startswith("algorithm.name") else ", beside a method"
        return f"{name!r} is not a method here; it is {_KEYS[word]}{beside}"
    return f"{name!r} is not a method here; methods train pairs of factors, or whole models" if word in _ELSE else None
