"""Parameters, FLOPs and bytes of a network of transformers, from shapes alone: nothing is computed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from shoestring.core.errors import UserError
from shoestring.core.records import Cost
from shoestring.core.sections import Model
from shoestring.models.families.hf.network import (
    CAUSAL_HEADS,
    MASKED_HEADS,
    auto_class,
    check_fit,
    predicts_hidden,
    quiet,
    read_config,
    whole_rows,
)
from shoestring.models.logits_model import count_cost, first_line


def hf_cost(model: Model, vocab_size: int, length: int) -> Cost:
    """Parameters by group and forward FLOPs per token, by the convention of `Cost`, from shapes alone.

    The network is built and run over one row without memory for its numbers, on torch's meta device; the head of a
    masked model reads every position. In a mixture of experts each token is counted with as many experts as its
    config says, by the kind of product whose shapes do not depend on numbers.
    """
    place = model.name or ""
    config = read_config(place)
    masked = predicts_hidden(config, place)
    check_fit(config, place, vocab_size, length)
    if any(getattr(config, name, 0) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        config._experts_implementation = "batched_mm"
    with quiet():
        try:
            with torch.device("meta"):
                network = auto_class(masked).from_config(config, dtype=torch.float32, trust_remote_code=False).eval()
        except (RuntimeError, ValueError, NotImplementedError) as cause:
            raise UserError(f"{place}: its FLOPs cannot be counted from shapes alone ({first_line(cause)})") from cause
        with whole_rows():
            return count_cost(network, length, "meta", place)


def hf_saved_bytes(model: Model, vocab_size: int, length: int, number: int) -> dict[str, int]:
    """Bytes that the backward pass of one row needs: saved activations, and logits where all are made at once.

    Counted by an eager pass over tensors without numbers, in bf16 (`number` = 2) or fp32; a compiled one saves less.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    place = model.name or ""
    config = read_config(place)
    masked = predicts_hidden(config, place)
    check_fit(config, place, vocab_size, length)

    def kept(network: Any, rows: int) -> int:
        storages: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            storages[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
            alive.append(x)  # so that no other storage gets its number
            return x

        alive: list[Tensor] = []
        half = torch.autocast("cpu", dtype=torch.bfloat16, enabled=number == 2)
        with half, saved_tensors_hooks(keep, lambda x: x):
            hidden = network.base_model(input_ids=torch.zeros(rows, length, dtype=torch.long)).last_hidden_state
        return sum(storages.values()) + int(hidden.untyped_storage().nbytes())

    try:
        with quiet(), whole_rows(), experts_by_shape(), FakeTensorMode():
            network = auto_class(masked).from_config(config, dtype=torch.float32, trust_remote_code=False).train()
            saved = kept(network, 3) - kept(network, 2)  # without weights and their copies
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as cause:
        raise UserError(f"{place}: its memory cannot be counted from shapes alone ({first_line(cause)})") from cause
    is_chunked = config.model_type in (MASKED_HEADS if masked else CAUSAL_HEADS)
    logits = 0 if is_chunked else 3 * 4 * length * int(config.get_text_config().vocab_size)
    return {"activations": saved} | ({"logits": logits} if logits else {})


@contextlib.contextmanager
def experts_by_shape() -> Iterator[None]:
    """Let transformers take the grouped products of experts whose shapes are known in every precision."""
    moe: Any = importlib.import_module("transformers.integrations.moe")
    asked = getattr(moe, "_can_use_grouped_mm", None)
    if asked is None:
        yield
        return
    moe._can_use_grouped_mm = lambda *_: False
    try:
        yield
    finally:
        moe._can_use_grouped_mm = asked
