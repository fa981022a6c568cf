"""Any causal or masked language model of `transformers`, by hub name, folder or config.

    NAME          on the hub, or fetched from it before
    FOLDER        with a config.json and weights; or with a config.json alone, for random weights
    CONFIG.json   for random weights

The network, its weights and its attention (`scaled_dot_product_attention` where the class has it) are those of
transformers; code that comes with a model is not run. Weights are float32, and dropout is what the config says.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from shoestring.core.errors import MissingExtra, UserError
from shoestring.core.facts import Cost
from shoestring.core.recipe import Model
from shoestring.models.cross_entropy import IGNORED
from shoestring.models.masked_lm import seen_keys
from shoestring.models.protocol import Batch, LanguageModel, Output, Rows

PREFIX = "network."
"""Before the names that transformers gives to weights."""
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


class Head(NamedTuple):
    """How the last hidden state of a base model becomes logits."""

    change: Callable[[Any, Tensor], Tensor]
    """Of a network's head and the hidden state: what the output product reads."""
    product: Callable[[Any], nn.Linear]


_PLAIN = Head(lambda _, x: x, lambda network: network.get_output_embeddings())
_BERT = Head(lambda network, x: network.cls.predictions.transform(x), lambda network: network.cls.predictions.decoder)
_ROBERTA = Head(
    lambda network, x: network.lm_head.layer_norm(F.gelu(network.lm_head.dense(x))),
    lambda network: network.lm_head.decoder,
)
CAUSAL_HEADS = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox"), _PLAIN)
MASKED_HEADS = {"bert": _BERT, "roberta": _ROBERTA, "xlm-roberta": _ROBERTA}
"""Kinds of model whose output product can be taken apart from the rest; of all others the logits are made at once."""
_FIRST_POSITION = ("roberta", "xlm-roberta", "camembert")
"""Kinds of model whose positions start behind that of padding."""


class HF(LanguageModel):
    """A network of transformers.

    A causal one predicts the next token, a masked one what a batch wants to be predicted. Padding comes last in its
    row, so no token of a causal model sees it; of a masked model it is left out by the attention mask.
    """

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        place = model.name or ""
        config = read_config(place)
        self.masked = predicts_hidden(config, place)
        check_fit(config, place, vocab_size, length)
        self.network = load(place, config, auto_class(self.masked), seed)
        self.__dict__["blocks"] = layers_of(self.network)  # has its names within the network, and no others
        self.head = (MASKED_HEADS if self.masked else CAUSAL_HEADS).get(config.model_type)
        self._options = (
            {"use_cache": False} if "use_cache" in inspect.signature(self.network.forward).parameters else {}
        )
        self._recomputes = False
        if not self.masked and self.head is None:
            check_causal(self.network, place)
        self.train()

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        """For the kinds of model whose head is known alone."""
        assert self.head is not None, "the logits of this model are made by its own head"
        return self.head.change(self.network, self._run(self.network.base_model, inputs).last_hidden_state)

    def output(self) -> Output:
        """For the kinds of model whose head is known alone."""
        assert self.head is not None, "the logits of this model are made by its own head"
        product = self.head.product(self.network)
        return Output(product.weight, product.bias)

    def forward(self, batch: Batch | Rows) -> Float[Tensor, ""]:
        """The summed loss in nats, with its gradient."""
        batch = self._checked(batch)
        return super().forward(batch) if self.head is not None else self._losses(batch).sum()

    @torch.no_grad()
    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        """The loss of every prediction, in nats and float32; 0 where there is none."""
        batch = self._checked(batch)
        if self.head is not None:
            return super().token_losses(batch)
        return self._losses(batch)

    def logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows positions vocabulary"]:
        """Of what comes after each position, or of a masked model stands there."""
        found: Tensor = self._run(self.network, Batch.of(inputs)).logits
        return found

    def _losses(self, batch: Batch) -> Float[Tensor, "rows predictions"]:
        logits = self.logits(batch.inputs()).flatten(0, 1)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        targets = batch.targets()
        losses = F.cross_entropy(logits, targets.flatten().long(), ignore_index=IGNORED, reduction="none")
        return losses.view(targets.shape)

    def _checked(self, batch: Batch | Rows) -> Batch:
        batch = Batch.of(batch)
        if self.masked and batch.wanted is None:
            raise UserError(f"{type(self.network).__name__} predicts hidden tokens, and these rows hide none")
        return batch

    def _run(self, module: nn.Module, inputs: Batch) -> Any:
        if inputs.within:
            raise UserError('data.within: a model of family "hf" attends over whole rows')
        self._follow_recompute()
        mask = None
        if self.masked and inputs.segments is not None:
            mask = seen_keys(inputs.segments)[:, 0, 0].long()
        return module(input_ids=inputs.ids, attention_mask=mask, **self._options)

    def _follow_recompute(self) -> None:
        """Do with the layers what their `recompute` says, by transformers' own means."""
        wanted = getattr(self.blocks[0], "recompute", "none") if len(self.blocks) else "none"
        if wanted == "selective":
            raise UserError('train.recompute = "selective": family "hf" has "none" and "full"')
        if (wanted == "full") == self._recomputes:
            return
        if wanted == "full" and not self.network.supports_gradient_checkpointing:
            raise UserError(f'train.recompute = "full": {type(self.network).__name__} cannot compute its layers again')
        self._recomputes = wanted == "full"
        if self._recomputes:
            self.network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            self.network.gradient_checkpointing_disable()

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return groups_of(self.network)


def hf_cost(model: Model, vocab_size: int, length: int) -> Cost:
    """Parameters by group and forward FLOPs a token, by the convention of `Cost`, from shapes alone.

    The network is built and run without memory for its numbers (on torch's meta device), on one row, with attention as
    plain products; the head of a masked model reads every position. A mixture of experts cannot be counted like that,
    as its numbers decide what is computed.
    """
    from torch.utils.flop_counter import FlopCounterMode  # takes a while

    place = model.name or ""
    config = read_config(place)
    masked = predicts_hidden(config, place)
    check_fit(config, place, vocab_size, length)
    experts = [name for name in ("num_experts", "num_local_experts", "n_routed_experts") if getattr(config, name, 0)]
    if experts:
        raise UserError(f"{place}: a mixture of experts ({experts[0]}), whose FLOPs cannot be counted before it runs")
    try:
        with quiet(), torch.device("meta"):
            network = auto_class(masked).from_config(config, dtype=torch.float32, trust_remote_code=False).eval()
            ids = torch.zeros(1, length, dtype=torch.long)
        with quiet(), sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(input_ids=ids)
    except (RuntimeError, ValueError, NotImplementedError) as cause:
        raise UserError(f"{place}: its FLOPs cannot be counted from shapes alone ({_first_line(cause)})") from cause
    sizes = {name: sum(p.numel() for p in group) for name, group in groups_of(network).items()}
    return Cost(parameters=sizes, forward_flops_per_token=counter.get_total_flops() / length)


def read_config(place: str) -> Any:
    """The config of a model, from a folder, a file or the hub."""
    transformers, path = _library(), Path(place).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        raise UserError(f"{place}: no model of transformers, as it has no config.json")
    try:
        with quiet():
            return transformers.AutoConfig.from_pretrained(
                str(path) if path.exists() else place, trust_remote_code=False
            )
    except Exception as cause:  # whatever goes wrong on the way to the hub, or in a file
        raise _unreadable(place, cause) from cause


def check_fit(config: Any, place: str, vocab_size: int, length: int) -> None:
    """Raise an error for a table that is too small for the ids or the positions of a row."""
    text = config.get_text_config()
    if text.vocab_size < vocab_size:
        raise UserError(
            f"{place} has {text.vocab_size:,} ids, and the tokenizer {vocab_size:,}: take its own tokenizer"
        )
    known = getattr(text, "max_position_embeddings", None)
    if known is not None and config.model_type in _FIRST_POSITION:
        known -= (config.pad_token_id or 0) + 1
    if known is not None and 0 < known < length:
        raise UserError(f"data.length = {length}: {place} knows {known} positions (max_position_embeddings)")


def predicts_hidden(config: Any, place: str) -> bool:
    """Whether a model is a masked one, by the class that its config names, else by the classes of its kind."""
    from transformers.models.auto import modeling_auto

    causal, masked = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    kind, decoder = config.model_type, getattr(config, "is_decoder", False)
    if not config.is_encoder_decoder:
        for name in config.architectures or ():
            if name == masked.get(kind) and not (name == causal.get(kind) and decoder):
                return True
            if name == causal.get(kind):
                return False
        if kind in masked and not decoder:
            return True
        if kind in causal:
            return False
    raise UserError(f"{place}: a {kind} is no causal or masked language model of transformers")


def auto_class(masked: bool) -> Any:
    """The class of transformers that picks a network by its config."""
    transformers = _library()
    return transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM


def load(place: str, config: Any, kind: Any, seed: int) -> Any:
    """The network on the CPU, with its stored weights, or with random ones of `seed` where none are stored."""
    path = Path(place).expanduser()
    stored = not path.exists() or any(True for pattern in _WEIGHTS for _ in path.glob(pattern))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if not stored:
            with quiet():
                return kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
        return load_stored(place, kind)


def load_stored(place: str, kind: Any) -> Any:
    """The network with its stored weights, on the CPU, in float32; `kind` is any class with `from_pretrained`."""
    path = Path(place).expanduser()
    try:
        with quiet():
            network, told = kind.from_pretrained(
                str(path) if path.exists() else place,
                dtype=torch.float32,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as cause:  # as for a config
        raise _unreadable(place, cause) from cause
    if missing := sorted(told["missing_keys"]):
        raise UserError(
            f"{place} lacks {len(missing)} of the weights of a {type(network).__name__}, as {', '.join(missing[:3])}"
        )
    return network


def check_causal(network: Any, place: str) -> None:
    """Raise an error for a network whose predictions depend on later tokens, as those of XLNet do."""
    ids = torch.tensor([[1, 2, 3, 1, 2, 3]]) % network.config.get_text_config().vocab_size
    other = ids.clone()
    other[0, -1] = 0
    training = network.training
    network.eval()
    with torch.no_grad():
        change = (network(input_ids=ids).logits - network(input_ids=other).logits).abs().amax(-1)[0]
    network.train(training)
    if change[:-1].max() > 1e-4 * change[-1]:
        raise UserError(f"{place}: a {type(network).__name__} sees later tokens, so it cannot predict the next one")


def layers_of(network: nn.Module) -> nn.ModuleList:
    """The list of layers: the largest list of modules there is."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()), default=nn.ModuleList())


def groups_of(network: Any) -> dict[str, list[nn.Parameter]]:
    """Every parameter in one group, by its name and module.

    What is neither attention, MLP nor norm is of "blocks" within a layer, of "other" elsewhere in the base model, and
    else of the head. A tied head is the embedding.
    """
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in ("embedding", "attention", "mlp", "norm", "head")}
    inside = {id(p) for p in layers_of(network).parameters()}
    product = network.get_output_embeddings()
    head = {id(p) for p in ([] if product is None else product.parameters())}
    base = {id(p) for p in network.base_model.parameters()} - head
    modules = dict(network.named_modules())
    for name, parameter in network.named_parameters():
        module = modules[name.rpartition(".")[0]]
        if isinstance(module, nn.Embedding) or (id(parameter) not in inside and "embed" in name.rpartition(".")[2]):
            group = "embedding"
        elif "norm" in type(module).__name__.lower():
            group = "norm"
        elif id(parameter) in inside:
            group = _part(name)
        else:
            group = "other" if id(parameter) in base else "head"
        groups.setdefault(group, []).append(parameter)
    return groups


_MLP = ("mlp", "ffn", "feed_forward", "fc1", "fc2", "intermediate", "output", "lin1", "lin2")
"""Parts of the names of MLPs, once attention is told apart."""


def _part(name: str) -> str:
    if "attn" in name or "attention" in name:
        return "attention"
    return "mlp" if any(part in name for part in _MLP) else "blocks"


def _library() -> Any:
    try:
        import transformers
    except ImportError as cause:
        raise MissingExtra("a model of transformers", "transformers", "hf") from cause
    return transformers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the notes and bars of transformers; what goes wrong is raised."""
    logging = _library().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _unreadable(place: str, cause: Exception) -> UserError:
    path = Path(place).expanduser()
    where = "cannot be read" if path.exists() else "not a folder here, and it could not be fetched from the hub"
    return UserError(f"{place}: {where} ({_first_line(cause)})")


def _first_line(cause: Exception) -> str:
    return str(cause).strip().partition("\n")[0] or type(cause).__name__
