"""How each published function is called. Nothing of it is copied: the modules come from the clones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import oracles
import torch
from adapted import LAYER, A, B, adapted, array, change, tensor, upload
from oracles import Array, Draw
from rows import Load

CLIENTS = range(3)
Run: TypeAlias = Callable[[Load, Draw], Array]


def bare(kind: type, **values: Any) -> Any:
    """An object of the published class, with the fields that its aggregation reads. The constructors load language
    models and data."""
    made = object.__new__(kind)
    vars(made).update(values)
    return made


class Given:
    """A trainer for whom training gives the client's factors, where they need gradients; it notes the starts."""

    def __init__(self, d: Draw, client: int) -> None:
        self.factors, self.starts = upload(d, client), list[Array]()

    def train(self, model: Any) -> None:
        self.starts.append(change(model))
        trained = [n for n, t in model.named_parameters() if t.requires_grad and n in self.factors]
        model.load_state_dict({n: self.factors[n] for n in trained}, strict=False)


def factory(name: str, known: str = "lora_", first: int = 0, rounds: int = 1, **fields: Any) -> Run:
    """FedLLM-Factory: rounds of a server and its clients, from number ``first``, whose server knows the tensors
    ``known``, as its constructor leaves it. The change of the model after one round, or with two rounds the first
    client's at the start of the second."""

    def run(load: Load, d: Draw) -> Array:
        module, model = load(f"alg.{name}"), adapted(d)
        server = bare(
            module.Server, model=model, args=SimpleNamespace(lora_rank=d.rank, lam=0.5), r=d.rank, clients=[],
            global_lora={n: t.clone() for n, t in model.state_dict().items() if known in n}, wall_clock_time=0,
            round=first, **fields,
        )  # fmt: skip
        server.sampled_clients = [
            bare(module.Client, trainer=Given(d, k), server=server, delay=1, phase=2, dataset={"train": range(n)})
            for k, n in enumerate(d.rows)
        ]
        for _ in range(rounds):
            server.local_run()
            server.aggregate()
        return server.sampled_clients[0].trainer.starts[1] if rounds == 2 else change(model)

    return run


SAVED = {"a": f"{LAYER}.lora_A.weight", "b": f"{LAYER}.lora_B.weight"}
LOCAL = {"a": f"{LAYER}.lora_A.local.weight", "b": f"{LAYER}.lora_B.local.weight"}


def from_files(load: Load, d: Draw, place: str, names: dict[str, str], call: Callable[..., Any]) -> Any:
    """``call(module, clients, folder, rows)`` after the uploads are written to ``place`` in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        for k in CLIENTS:
            path = Path(folder, place.format(k), "pytorch_model.bin")
            path.parent.mkdir(parents=True)
            torch.save(upload(d, k, **names), path)
        return call(load("fed_utils.model_aggregation"), [*CLIENTS], folder, dict(enumerate(d.rows)))


def fedit(load: Load, d: Draw, *options: Any) -> Array:
    """FedIT's own code; with ``options`` FLoRA's copy of it."""
    model = adapted(d)
    from_files(load, d, "0/local_output_{}", SAVED, lambda m, *given: m.FedAvg(model, *given, 0, *options))
    return change(model)


def flora_fedit(load: Load, d: Draw) -> Array:
    return fedit(load, d, False, d.rank, False, [d.rank] * 3, False, False)


def flora(load: Load, d: Draw) -> Array:
    def call(module: Any, clients: Any, folder: str, rows: Any) -> Any:
        module.FedAvg(None, clients, folder, rows, 0, True, d.rank, False, [d.rank] * 3, False, False)
        return torch.load(Path(folder, "0", "adapter_model.bin"))

    stack = from_files(load, d, "0/local_output_{}", SAVED, call)
    return d.scale * array(stack[SAVED["b"]] @ stack[SAVED["a"]])


def flexlora(load: Load, d: Draw) -> Array:
    mean = from_files(load, d, "{}/local_output_epoch_0", LOCAL, lambda m, *given: m.FlexLoRA(*given, 0))
    ranks = {"alpha": d.alpha, "Client_0": {"q_proj": d.rank}}
    sent = load("fed_utils.adaptive_peft").distribute_weight_fast(mean, ranks)
    b, a = (sent[f"{LAYER}.lora_{x}.local.weight.{d.rank}"] for x in "BA")
    return d.scale * array(b @ a)


def hetlora(load: Load, d: Draw) -> Array:
    new = from_files(load, d, "{}/local_output_epoch_0", LOCAL, lambda m, *given: m.truncate(*given, 0))
    return d.scale * array(new[LOCAL["b"]] @ new[LOCAL["a"]])


def fedex(function: str, *, conv1d: bool = False) -> Run:
    def run(load: Load, d: Draw) -> Array:
        model = adapted(d, conv1d=conv1d)
        args = SimpleNamespace(lora_alpha=d.alpha, lora_r=d.rank, rslora=False)
        states = [{**model.state_dict(), **upload(d, k)} for k in CLIENTS]
        getattr(load("fed_agg"), function)(model, states, *([args] if function.endswith("ours") else []))
        return change(model)

    return run


def fedsvd(algorithm: str = "fedavg", *, svd: bool = False, **chosen: bool) -> Run:
    def run(load: Load, d: Draw) -> Array:
        model = adapted(d)
        module, start = load("fedmm.fedavg.server"), {n: array(t) for n, t in model.state_dict().items()}
        args = SimpleNamespace(**{"agg_flora": False, "agg_fedex": False, **chosen}, model=algorithm)
        server = bare(
            module.Server, args=args, model=model, scaling_factor=d.scale, logger=SimpleNamespace(print=print),
            get_weights=lambda: {"model": start},
        )  # fmt: skip
        diffs = {k: {n: array(upload(d, k).get(n, tensor(t))) - t for n, t in start.items()} for k in CLIENTS}
        new = server.aggregate(diffs, d.p.tolist())
        model.load_state_dict({n: torch.as_tensor(t) for n, t in new.items() if t is not None})
        if svd:
            load("misc.utils").reinit_lora(model)
        return change(model)

    return run


ACCELERATOR = SimpleNamespace(
    device=torch.device("cpu"), is_main_process=False, state=SimpleNamespace(num_processes=1, local_process_index=0),
    prepare=lambda *xs: xs, backward=lambda loss: loss.backward(), reduce=lambda x, reduction: x,
    free_memory=lambda: None, wait_for_everyone=lambda: None,
)  # fmt: skip


def fslora(load: Load, d: Draw) -> Array:
    """Which of two ranks one local step moves, where the client draws one."""
    module = load("LoRA_Sketching")
    vars(module.args).update(num_comm_rounds=1, clients=1, server_batch=1, local_iter_per_round=1)
    model = adapted(d, adapter={B: tensor(d.b0)})
    rows = [{"input_ids": tensor(d.a[0]), "attention_mask": None, "labels": None}]
    module.fl_slora_train_llama_het(model, [rows], "sgd", 1.0, 1e-3, 1, d.rank, [1], ACCELERATOR, 0)
    moved = (array(model.state_dict()[B]) != d.b0.astype(np.float32)).any(0)
    return np.sort(moved.astype(float))[::-1]


def fedscope(load: Load, d: Draw) -> Array:
    module = load("federatedscope.core.aggregators.clients_avg_aggregator")
    options = SimpleNamespace(federate=SimpleNamespace(use_ss=False, ignore_weight=False))
    server = module.ClientsAvgAggregator(config=options)
    return array(
        server.aggregate({"client_feedback": [(n, {A: tensor(a)}) for n, a in zip(d.rows, d.a, strict=True)]})[A]
    )


def fedrot(load: Load, d: Draw) -> Array:
    """The clients' turn; the server of this repository averages."""
    turn, turned = load("federatedscope.rotation_alignment_tools").rotation_alignment_soft, []
    names = {"a": "q.lora_A", "b": "q.lora_B"}
    for k in CLIENTS:
        factors = upload(d, k, **names)
        a, b = ({n: t for n, t in factors.items() if n == name} for name in names.values())
        turned.append(turn({names["a"]: tensor(d.a0)}, "A", a, b, 0.5))
    a, b = (tuple(array(pair[i][n]) for pair in turned) for i, n in enumerate(names.values()))
    return d.scale * oracles.mean(b, d.p) @ oracles.mean(a, d.p)


def fedlease(load: Load, d: Draw) -> Array:
    server = load("server").Server(3, device="cpu")
    uploads = [
        {f"{x}{g}": tensor(t[k]) for g in (0, 1) for x, t in (("lora_A", d.a), ("lora_B", d.b))} for k in CLIENTS
    ]
    new = server.aggregation(True, uploads, {"0": [0, 1], "1": [2]})
    return np.concatenate([array(new[0][f"lora_B{g}"] @ new[0][f"lora_A{g}"]) for g in (0, 1)])


def openfedllm(algorithm: str) -> Run:
    """The change of A after two rounds, of all clients' equal uploads by rows (FedAvg) or unweighted."""

    def run(load: Load, d: Draw) -> Array:
        args = SimpleNamespace(
            fed_alg=algorithm, fedopt_beta1=oracles.BETA1, fedopt_beta2=oracles.BETA2, fedopt_eta=oracles.ETA,
            fedopt_tau=oracles.TAU, num_clients=3,
        )  # fmt: skip
        model = {A: tensor(d.a0)}
        proxies = load("federated_learning.fed_utils").get_proxy_dict(args, model)
        extra = ({A: torch.zeros_like(model[A])}, [{A: torch.zeros_like(model[A])} for _ in CLIENTS])
        step = load("federated_learning.fed_global").global_aggregate
        local = [{A: tensor(a)} for a in d.a]
        for index in range(1 if algorithm in ("fedavg", "scaffold") else 2):
            model, _ = step(args, model, local, d.rows, [*CLIENTS], index, *proxies, extra)
        return array(model[A]) - (0 if algorithm in ("fedavg", "scaffold") else d.a0)

    return run


def pfllib(module: str, name: str, base: bool = False) -> Run:
    def run(load: Load, d: Draw) -> Array:
        cost, clients = {"total_cost": 0, "num_rounds": 1}, []
        for k, n in enumerate(d.rows):
            body = torch.nn.Linear(d.a0.shape[1], d.rank, bias=False)
            body.load_state_dict({"weight": tensor(d.a[k])})
            clients.append(
                SimpleNamespace(
                    id=k, train_samples=n, train_time_cost=cost, send_time_cost=cost,
                    model=SimpleNamespace(base=body) if base else body,
                    delta_yc=lambda k=k: ([tensor(d.a[k] - d.a0)], []),
                )
            )  # fmt: skip
        start = torch.nn.Linear(d.a0.shape[1], d.rank, bias=False)
        start.load_state_dict({"weight": tensor(d.a0)})
        server = bare(
            getattr(load(f"flcore.servers.{module}"), name), selected_clients=clients, clients=clients,
            client_drop_rate=0, current_num_join_clients=3, num_join_clients=3, num_clients=3, time_threthold=1,
            global_model=start, global_c=[], server_learning_rate=1.0,
        )  # fmt: skip
        server.receive_models()
        server.aggregate_parameters()
        return array(server.global_model.weight)

    return run


def flower(name: str, rounds: int = 0, module: str = "flwr.server.strategy") -> Run:
    """One average by rows; with ``rounds``, the change of A by a server optimizer and clients of equal weight."""

    def run(load: Load, d: Draw) -> Array:
        kind, common = getattr(load(module), name), load("flwr.common")
        start = common.ndarrays_to_parameters([d.a0])
        optimizers = {"eta": oracles.ETA, "tau": oracles.TAU, "initial_parameters": start} if rounds else {}
        betas = {"beta_1": oracles.BETA1, "beta_2": oracles.BETA2} if rounds and name != "FedAdagrad" else {}
        strategy = kind(**optimizers, **betas)
        status = common.Status(common.Code.OK, "")
        results = [
            (None, common.FitRes(status, common.ndarrays_to_parameters([a]), 1 if rounds else n, {}))
            for a, n in zip(d.a, d.rows, strict=True)
        ]
        for index in range(1, max(rounds, 1) + 1):
            parameters, _ = strategy.aggregate_fit(index, results, [])
        return common.parameters_to_ndarrays(parameters)[0] - (d.a0 if rounds else 0)

    return run


def flowertune(load: Load, d: Draw) -> Array:
    app, kind = load("flwr.app"), load("flwr.serverapp.strategy").FedAvg
    messages = []
    for k, n in enumerate(d.rows):
        records = {"arrays": app.ArrayRecord({A: tensor(d.a[k])}), "metrics": app.MetricRecord({"num-examples": n})}
        messages.append(app.Message(app.RecordDict(records), dst_node_id=k + 1, message_type="train"))
    arrays, _ = kind().aggregate_train(1, messages)
    return array(arrays.to_torch_state_dict()[A])


def nvflare(load: Load, d: Draw) -> Array:
    helper = load("nvflare.app_common.aggregators.weighted_aggregation_helper").WeightedAggregationHelper()
    for k, n in enumerate(d.rows):
        helper.add({A: tensor(d.a[k])}, n, f"site-{k}", 0)
    return array(helper.get_result()[A])


def fedloru(load: Load, d: Draw) -> Array:
    """The server's mean of three clients' convolutions of one pixel, merged: the weight afterwards."""
    conv = load("src.algorithm.fedloru.lorumodel").LoWRank2DConv
    module = load("src.algorithm.fedloru.main")

    def layer(a: Array, b: Array) -> Any:
        made = conv(a.shape[1], b.shape[0], (1, 1), d.rank, bias=False, alpha=d.alpha)
        made.load_state_dict(
            {"loru_down.weight": tensor(a)[..., None, None], "loru_up.weight": tensor(b)[..., None, None]}, strict=False
        )
        return made

    server = SimpleNamespace(global_model=layer(d.a0, d.b0))
    clients = [SimpleNamespace(model=layer(a, b)) for a, b in zip(d.a, d.b, strict=True)]
    names = SimpleNamespace(algorithm="fedloru", dataset="")
    run = bare(module.FedLoRU, server=server, clients=clients, args=names, round=1)
    run._request_global_aggregate([*CLIENTS], dict(enumerate(d.rows)))
    server.global_model.merge_and_reinit()
    return array(server.global_model.weight)[..., 0, 0]
