"""Networks that return logits and have any structure: those of transformers, and modules of the user's own.

Their layers are the largest list of modules, and their parameters are grouped by names and modules.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from shoestring.core.errors import UserError
from shoestring.core.records import Cost
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel, Output, Rows
from shoestring.models.layers.cross_entropy import IGNORED


class LogitsModel(LanguageModel):
    """Base of networks whose loss is computed from all logits at once."""

    network: Any

    @abstractmethod
    def logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows positions vocabulary"]: ...

    def last_logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows vocabulary"]:
        """The prediction of the token after each row."""
        return self.logits(inputs)[:, -1]

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:  # noqa: ARG002
        raise AssertionError("this model computes its logits itself")

    def output(self) -> Output:
        raise AssertionError("this model computes its logits itself")

    def forward(self, batch: Batch | Rows, scale: Float[Tensor, ""] | None = None) -> Float[Tensor, ""]:
        """The summed loss in nats, with its gradient times `scale`."""
        loss = self._losses(Batch.of(batch)).sum()
        if scale is None:
            return loss
        scaled: Tensor = _ScaledGradient.apply(loss, scale)
        return scaled

    @torch.no_grad()
    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        """The loss of every prediction, in nats and float32; 0 where there is none."""
        return self._losses(Batch.of(batch))

    def _losses(self, batch: Batch) -> Float[Tensor, "rows predictions"]:
        logits = self.logits(batch.inputs()).flatten(0, 1)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        targets = batch.targets()
        losses = F.cross_entropy(logits, targets.flatten().long(), ignore_index=IGNORED, reduction="none")
        return losses.view(targets.shape)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return groups_of(self.network)


class _ScaledGradient(torch.autograd.Function):
    """A loss whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        return outer * ctx.saved_tensors[0], None


def layers_of(network: nn.Module) -> nn.ModuleList:
    """The layers: the list of modules with the most parameters."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()), default=nn.ModuleList())


def groups_of(network: Any) -> dict[str, list[nn.Parameter]]:
    """Every parameter in one group, by its name and module.

    Other parameters than those of attention, MLPs and norms are in "blocks" within a layer, in "other" elsewhere in the
    base model of transformers, and else in "head". A tied head belongs to the embedding.
    """
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in ("embedding", "attention", "mlp", "norm", "head")}
    inside = {id(p) for p in layers_of(network).parameters()}
    base = _base_parameters(network)
    modules = dict(network.named_modules())
    for name, parameter in network.named_parameters():
        module = modules[name.rpartition(".")[0]]
        if isinstance(module, nn.Embedding) or (id(parameter) not in inside and "embed" in name.rpartition(".")[2]):
            group = "embedding"
        elif "norm" in type(module).__name__.lower():
            group = "norm"
        elif id(parameter) in inside and ("attn" in name or "attention" in name):
            group = "attention"
        elif id(parameter) in inside:
            group = "mlp" if any(part in name for part in _MLP) else "blocks"
        else:
            group = "other" if id(parameter) in base else "head"
        groups.setdefault(group, []).append(parameter)
    return groups


def _base_parameters(network: Any) -> set[int]:
    """Parameters of a model of transformers outside its head."""
    if not hasattr(network, "base_model"):
        return set()
    product = network.get_output_embeddings()
    head = {id(p) for p in ([] if product is None else product.parameters())}
    return {id(p) for p in network.base_model.parameters()} - head


_MLP = ("mlp", "ffn", "feed_forward", "fc1", "fc2", "intermediate", "output", "lin1", "lin2")
"""Parts of the names of MLPs, after attention is excluded."""


def count_cost(
    network: nn.Module, length: int, device: str, what: str, run: Callable[[Tensor], object] | None = None
) -> Cost:
    """Parameters by group and forward FLOPs per token, by the convention of `Cost`, counted in a pass over one row.

    Attention is run as plain products, which is how `Cost` counts it. On the device "meta" nothing is computed. `run`
    is the pass over ids; default: the network.
    """
    from torch.utils.flop_counter import FlopCounterMode  # takes a while

    ids = torch.zeros(1, length, dtype=torch.long, device=device)
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
            (run or network)(ids)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as cause:
        raise UserError(f"{what}: its FLOPs cannot be counted ({first_line(cause)})") from cause
    sizes = {name: sum(p.numel() for p in group) for name, group in groups_of(network).items()}
    return Cost(parameters=sizes, forward_flops_per_token=counter.get_total_flops() / length)


def first_line(cause: BaseException) -> str:
    """The first line of an error's message, or its type."""
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


def sees_later_tokens(logits: Any, vocabulary: int) -> bool:
    """Whether predictions depend on later tokens, as those of XLNet do; `logits` computes them from ids."""
    ids = torch.tensor([[1, 2, 3, 1, 2, 3]]) % vocabulary
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % vocabulary
    with torch.no_grad():
        change = (logits(ids) - logits(other)).abs().amax(-1)[0]
    return bool(change[:-1].max() > 1e-4 * change[-1])
