"""The rows of the page: published code at a commit, its oracle, and what is different."""

from __future__ import annotations

from functools import partial

import oracles
import published as p
from oracles import Draw
from own import method, optimizer
from rows import Row, Source

from rondo.algorithms.wrappers import server_optimizer

FACTORY = Source("boyi-liu/FedLLM-Factory", "6a0679920adfc397ea3ab8727ee380b9f1593cb7")
FLORA = Source("ATP-1010/FederatedLLM", "7bea15826bc0de37da35e44bc34a39274e3cc09f")
SHEPHERD = Source("JayZhang42/FederatedGPT-Shepherd", "bcffa00e9642990ecc6210363a7f0dab91bef4dc")
FLEXLORA = Source(
    "alibaba/FederatedScope", "1cb1ab76bf4c9394d617c4c5a800cb0df145796d", folder="FederatedScope-FlexLoRA"
)
SCOPE = Source("alibaba/FederatedScope", "7f086944c57f85c7594bde44d4f6b981f0de6845", folder="FederatedScope-llm")
FEDEX = Source("RaghavSinghal10/fedex-lora", "683a3f30dd969c19a6a995d424f2e475cc283e4c")
FEDSVD = Source("seanie12/fed-svd", "36650e2eb7773521c90f5e7dcf80c0b492cd613e")
FEDSA = Source("Pengxin-Guo/FedSA-LoRA", "fc276b5ead4208c75fb0b2dd16923f307afb3acd")
FEDROT = Source("haoran-zh/FedRot-LoRA", "36a67ef205818c292cf9ff361a80f969de16cedd")
FEDLEASE = Source("lei-wang-link/FedLEASE", "cf18cd6b74e42bdb85c5fca0006dc181b86b30d5")
SKETCH = "wenzhifang/Federated-Sketching-LoRA-Implementation"
FSLORA = Source(SKETCH, "ac24177385eaf12f815680aa70c774a8fa354a3f", ("src",))
FEDLORU = Source("haemPark/fedloru_official", "219688b6b1cbc1cf4c07de539a9e50d41192bb68")
OPEN = Source("rui-ye/OpenFedLLM", "14c6af2dd5c830e8b22a48b263ae33afdd285fc8")
PFLLIB = Source("TsingZ0/PFLlib", "d832e76f6a23b833038949ec1e4fdefe63a4d350", ("system",))
FLOWER = Source("adap/flower", "fdef7afb1dca3030553be302366cfd285ed6632c", ("framework/py",))
BASELINE = Source("adap/flower", FLOWER.commit, ("baselines/fedrep", "framework/py"))
NVFLARE = Source("NVIDIA/NVFlare", "f3b7c1bffdfed90338d695a67b52a46d8bc4d28c")

SQUARE, RANKS = partial(Draw.of, out=10), partial(Draw.of, ranks=(2, 1, 1))
FEDEX_STUBS = ("transformers", "data_utils", "models")
PFL_STUBS = ("h5py", "torchvision", "torchtext", "ujson")
EQUAL = "Equal."
BY_ROWS = "The body is averaged by rows. Algorithm 1 averages it equally."
V_ZERO = "The second moment starts at 0; the paper starts it at tau² or above."
EARLY = "The first momentum is the whole step, and the second moment squares the momentum, not the step."
COPY = "[in a copy](https://github.com/1xbq1/FedMLLM/issues/4)"

ROWS = (
    Row(FLORA, "FLoRA", "FedAvg, stacking", p.flora, oracles.mean_of_products, EQUAL, ("fed_utils",)),
    Row(FLORA, "FedIT", "FedAvg, not stacking", p.flora_fedit, oracles.fedit,
        "A misspelt name drops every sum: what is left is the first client's factors, times its share.",
        ("fed_utils",)),
    Row(SHEPHERD, "FedIT", "FedAvg", p.fedit, oracles.fedit, EQUAL, ("fed_utils",)),
    Row(FLEXLORA, "FlexLoRA", "FlexLoRA, distribute_weight_fast", p.flexlora, oracles.flexlora,
        "Equal at alpha = 16, which the code fixes.", ("fed_utils",)),
    Row(FLEXLORA, "HetLoRA", "truncate", p.hetlora, oracles.hetlora,
        "Weights are shares of rows, not the norms of the products.", ("fed_utils",), RANKS),
    Row(FEDEX, "FedEx-LoRA", "aggregate_models_ours, Conv1D", p.fedex("aggregate_models_ours", conv1d=True),
        oracles.mean_of_products_uniform, "Equal, with the layers of GPT-2.", FEDEX_STUBS),
    Row(FEDEX, "FedEx-LoRA", "aggregate_models_ours, Linear 10 x 10", p.fedex("aggregate_models_ours"),
        oracles.mean_of_products_uniform, "The residual is added transposed.", FEDEX_STUBS, SQUARE),
    Row(FEDEX, "FedEx-LoRA", "aggregate_models_ours, Linear 12 x 10", p.fedex("aggregate_models_ours"),
        oracles.mean_of_products_uniform, "The transposed residual does not fit the weight.", FEDEX_STUBS),
    Row(FEDEX, "FFA-LoRA", "aggregate_models_ffa", p.fedex("aggregate_models_ffa"), oracles.one_factor_uniform, EQUAL,
        FEDEX_STUBS),
    Row(FEDSVD, "FedSVD", "Server.aggregate, reinit_lora", p.fedsvd("ffa", svd=True), oracles.one_factor, EQUAL,
        ("wandb",)),
    Row(FEDSVD, "FLoRA", "Server.aggregate", p.fedsvd(agg_flora=True), oracles.mean_of_products, EQUAL, ("wandb",)),
    Row(FEDSVD, "FedEx-LoRA", "Server.aggregate", p.fedsvd(agg_fedex=True), oracles.mean_of_products, EQUAL,
        ("wandb",)),
    Row(FEDSVD, "FedIT", "Server.aggregate", p.fedsvd(), oracles.fedit, EQUAL, ("wandb",)),
    Row(FEDSA, "FedSA-LoRA", "ClientsAvgAggregator", p.fedscope, oracles.averaged,
        "Equal. The server's average of A was run, not the clients."),
    Row(FEDROT, "FedRot-LoRA", "rotation_alignment_soft", p.fedrot, oracles.fedrot,
        "Equal, in a round that turns towards A. The oracle averages."),
    Row(FEDLEASE, "FedLEASE", "Server.aggregation", p.fedlease, oracles.shared_by_cluster,
        "Equal, with given clusters. Experts were run, not routers."),
    Row(FSLORA, "FSLoRA", "fl_slora_train_llama_het", p.fslora, oracles.fslora,
        "Parameter names are compared with `lora_A` and `lora_B` whole, so no sketch applies. Both ranks move."),
    Row(FEDLORU, "FedLoRU", "_request_global_aggregate, merge_and_reinit", p.fedloru, oracles.fedit,
        "Equal, with alpha / r for the paper's alpha. `server.py` is empty, and the program cannot start.",
        ("src", "src.algorithm.fedloru.server")),
    Row(FACTORY, "FedIT", "alg.fedit", p.factory("fedit"), oracles.fedit, EQUAL),
    Row(FACTORY, "FFA-LoRA", "alg.ffalora", p.factory("ffalora", "lora_B"), oracles.one_factor, EQUAL),
    Row(FACTORY, "FedSVD", "alg.fedsvd", p.factory("fedsvd"), oracles.one_factor, EQUAL),
    Row(FACTORY, "FedRot-LoRA", "alg.fedrotlora", p.factory("fedrotlora", first=1), oracles.fedrot,
        "Equal, in a round that turns towards A."),
    Row(FACTORY, "RoLoRA", "alg.rolora", p.factory("rolora", "lora_A"), oracles.one_factor,
        "Round 0 trains A while B is zero, so the model does not change. The paper begins with the zero factor."),
    Row(FACTORY, "FedSA-LoRA", "alg.fedsalora", p.factory("fedsalora", "lora_A", rounds=2), oracles.fedsa,
        "No client keeps its B. The first one begins its second round with the last one's."),
    Row(FACTORY, "FLoRA", "alg.flora", p.factory("flora"), oracles.mean_of_products,
        "The product enters the weight without alpha / r."),
    Row(FACTORY, "FedEx-LoRA", "alg.fedexlora", p.factory("fedexlora"), oracles.mean_of_products,
        "The residual enters without alpha / r, and mixes shares of rows with equal shares."),
    Row(FACTORY, "FlexLoRA", "alg.flexlora", p.factory("flexlora", s=8), oracles.flexlora,
        "B gets the square roots of the singular values, and A does not."),
    Row(FACTORY, "FedMomentum", "alg.fedmomentum", p.factory("fedmomentum", tau=1.0), oracles.mean_of_products,
        "The remainder enters the weight without alpha / r."),
    Row(FACTORY, "SLoRA", "alg.slora", p.factory("slora", first=1, r1_round=1), oracles.fedit,
        "The change to the second stage calls its SVD without arguments. The line is marked as a to-do."),
    Row(SCOPE, "FedIT", "ClientsAvgAggregator", p.fedscope, oracles.averaged, EQUAL),
    Row(OPEN, "FedAvg", "global_aggregate", p.openfedllm("fedavg"), oracles.averaged, EQUAL),
    Row(OPEN, "SCAFFOLD", "global_aggregate", p.openfedllm("scaffold"), oracles.averaged_uniform,
        "Models are averaged by rows. The paper averages them equally."),
    Row(OPEN, "FedAdagrad", "global_aggregate", p.openfedllm("fedadagrad"), oracles.fedadagrad, EQUAL),
    Row(OPEN, "FedAdam", "global_aggregate", p.openfedllm("fedadam"), oracles.fedadam, EARLY, reported=COPY),
    Row(OPEN, "FedYogi", "global_aggregate", p.openfedllm("fedyogi"), oracles.fedyogi, EARLY, reported=COPY),
    Row(FLOWER, "FedAvg", "strategy.FedAvg", p.flower("FedAvg"), oracles.averaged, EQUAL),
    Row(FLOWER, "FlowerTune", "serverapp.strategy.FedAvg", p.flowertune, oracles.averaged, EQUAL),
    Row(FLOWER, "FedAdam", "strategy.FedAdam", p.flower("FedAdam", 2), oracles.fedadam,
        "Adam's bias correction is added, on purpose. The second moment starts at 0.",
        reported="[pull 4362](https://github.com/flwrlabs/flower/pull/4362)"),
    Row(FLOWER, "FedYogi", "strategy.FedYogi", p.flower("FedYogi", 2), oracles.fedyogi, V_ZERO),
    Row(FLOWER, "FedAdagrad", "strategy.FedAdagrad", p.flower("FedAdagrad", 2), oracles.fedadagrad, V_ZERO),
    Row(BASELINE, "FedRep", "baselines, FedRep", p.flower("FedRep", module="fedrep.strategy"),
        oracles.averaged_uniform, BY_ROWS),
    Row(NVFLARE, "FedAvg", "WeightedAggregationHelper", p.nvflare, oracles.averaged,
        "Equal. The LLM example averages with it."),
    Row(PFLLIB, "FedAvg", "FedAvg", p.pfllib("serveravg", "FedAvg"), oracles.averaged, EQUAL, PFL_STUBS),
    Row(PFLLIB, "FedPer", "FedPer", p.pfllib("serverper", "FedPer", base=True), oracles.averaged, EQUAL, PFL_STUBS),
    Row(PFLLIB, "SCAFFOLD", "SCAFFOLD", p.pfllib("serverscaffold", "SCAFFOLD"), oracles.averaged_uniform,
        "Equal. The models were run, not the control variates.", PFL_STUBS),
    Row(PFLLIB, "FedRep", "FedRep", p.pfllib("serverrep", "FedRep", base=True), oracles.averaged_uniform, BY_ROWS,
        PFL_STUBS),
)  # fmt: skip

RONDO = {
    "fedit": (method("fedit"), oracles.fedit, Draw.of),
    "ffa-lora": (method("ffa-lora"), oracles.one_factor, Draw.of),
    "rolora": (method("rolora"), oracles.one_factor, Draw.of),
    "fedsvd": (method("fedsvd"), oracles.one_factor, Draw.of),
    "fedsa-lora": (method("fedsa-lora"), oracles.fedsa, Draw.of),
    "flora": (method("flora"), oracles.mean_of_products, Draw.of),
    "fedex-lora": (method("fedex-lora"), oracles.mean_of_products, Draw.of),
    "fedmomentum": (method("fedmomentum"), oracles.mean_of_products, Draw.of),
    "fedrot-lora": (method("fedrot-lora", first=1), oracles.fedrot, Draw.of),
    "flexlora": (method("flexlora"), oracles.flexlora, Draw.of),
    "hetlora": (method("hetlora"), oracles.hetlora, RANKS),
    "FedAdam": (optimizer(server_optimizer.adam), oracles.fedadam, Draw.of),
    "FedYogi": (optimizer(server_optimizer.yogi), oracles.fedyogi, Draw.of),
    "FedAdagrad": (optimizer(server_optimizer.adagrad), oracles.fedadagrad, Draw.of),
}
"""Rondo's methods, and its server optimizers over `fedit`."""
