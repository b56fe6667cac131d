"""Two operators of torchvision without a body. fluke imports torchvision for its data sets, whose wheel on PyPI is for
CUDA; beside torch for the CPU its operators do not load, but its import asks for these two. No contestant calls them.
"""

import contestant  # isort: skip  # noqa: F401  (notes the start before the large imports)
import torch

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
