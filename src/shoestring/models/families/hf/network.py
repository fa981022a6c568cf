"""Any causal or masked language model of `transformers`, by hub name, folder or config.

    NAME          on the hub, or fetched from it before
    FOLDER        with a config.json and weights; or with a config.json alone, for random weights
    CONFIG.json   for random weights

The network, its weights and its attention (`scaled_dot_product_attention` where the class has it) are those of
transformers; code that comes with a model is not run. Weights are float32, and dropout is what the config says.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from shoestring.core.errors import MissingExtra, UserError
from shoestring.core.files import check_readable
from shoestring.core.hub import spare_the_wait
from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.families.masked_lm.network import seen_keys
from shoestring.models.language_model import LanguageModel, Output, Rows
from shoestring.models.logits_model import LogitsModel, first_line, layers_of, sees_later_tokens
from shoestring.models.peft_format import merge_stored, stored_adapter

PREFIX = "network."
"""Prefix of the names that transformers gives to weights."""
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_PICKLED = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.gguf")
"""Other files of weights. Most are pickles, which can run code when they are read."""


class Head(NamedTuple):
    """How logits are computed from the last hidden state of a base model."""

    change: Callable[[Any, Tensor], Tensor]
    """From a network and its hidden state to the input of the output product."""
    product: Callable[[Any], nn.Linear]


_PLAIN = Head(lambda _, x: x, lambda network: network.get_output_embeddings())
_BERT = Head(lambda network, x: network.cls.predictions.transform(x), lambda network: network.cls.predictions.decoder)
_ROBERTA = Head(
    lambda network, x: network.lm_head.layer_norm(F.gelu(network.lm_head.dense(x))),
    lambda network: network.lm_head.decoder,
)
CAUSAL_HEADS = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox"), _PLAIN)
MASKED_HEADS = {"bert": _BERT, "roberta": _ROBERTA, "xlm-roberta": _ROBERTA}
"""Kinds of model whose output product is separated from the rest; all others compute all logits at once."""
_FIRST_POSITION = ("roberta", "xlm-roberta", "camembert")
"""Kinds of model whose positions start after that of padding."""


class Past:
    """What a network of transformers keeps of the tokens that it has read."""

    kept: Any = None


class HF(LogitsModel):
    """A network of transformers.

    A causal one predicts the next token, a masked one the hidden tokens of a batch. Padding comes last in its row, so
    that no token of a causal model sees it; a masked model has an attention mask.
    """

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        place = model.name or ""
        config = read_config(place)
        self.masked = predicts_hidden(config, place)
        check_fit(config, place, vocab_size, length)
        self.network = load(place, config, auto_class(self.masked), seed)
        self.__dict__["blocks"] = layers_of(self.network)  # not registered: its weights have their names in the network
        self.head = (MASKED_HEADS if self.masked else CAUSAL_HEADS).get(config.model_type)
        takes = inspect.signature(self.network.forward).parameters
        self._options = {"use_cache": False} if "use_cache" in takes else {}
        self._keeps = not self.masked and {"use_cache", "past_key_values"} <= takes.keys()
        self._recomputes = False
        if not self.masked and self.head is None:
            self.network.eval()
            ids = self.network.config.get_text_config().vocab_size
            if sees_later_tokens(lambda rows: self.network(input_ids=rows).logits, ids):
                kind = type(self.network).__name__
                raise UserError(f"{place}: a {kind} sees later tokens, so it cannot predict the next one")
        self.train()

    @classmethod
    def skeleton(cls, model: Model, vocab_size: int, length: int) -> HF:
        """Its modules alone, made from the config, to be counted."""
        found, config = cls.__new__(cls), read_config(model.name or "")
        nn.Module.__init__(found)
        found.masked = predicts_hidden(config, model.name or "")
        check_fit(config, model.name or "", vocab_size, length)
        with quiet():
            found.network = auto_class(found.masked).from_config(config, dtype=torch.float32, trust_remote_code=False)
        found.__dict__["blocks"] = layers_of(found.network)
        return found

    @property
    def pretrained(self) -> Any:
        return self.network

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        """Only for kinds of model with a known head."""
        assert self.head is not None, "this model computes its logits itself"
        return self.head.change(self.network, self._run(self.network.base_model, inputs).last_hidden_state)

    def output(self) -> Output:
        """Only for kinds of model with a known head."""
        assert self.head is not None, "this model computes its logits itself"
        product = self.head.product(self.network)
        return Output(product.weight, product.bias)

    def forward(self, batch: Batch | Rows, scale: Float[Tensor, ""] | None = None) -> Float[Tensor, ""]:
        batch = self._checked(batch)
        return super().forward(batch, scale) if self.head is None else LanguageModel.forward(self, batch, scale)

    @torch.no_grad()
    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        batch = self._checked(batch)
        return super().token_losses(batch) if self.head is None else LanguageModel.token_losses(self, batch)

    def logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows positions vocabulary"]:
        """The prediction of the token after each position, or of a masked model at it."""
        found: Tensor = self._run(self.network, Batch.of(inputs)).logits
        return found

    def last_logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows vocabulary"]:
        return super().last_logits(inputs) if self.head is None else LanguageModel.last_logits(self, inputs)

    def past(self, length: int) -> Past | None:  # noqa: ARG002
        return Past() if self._keeps else None

    def read_on(self, ids: Rows, past: Past) -> Float[Tensor, "rows vocabulary"]:
        found = self.network(input_ids=ids, past_key_values=past.kept, use_cache=True)
        past.kept = found.past_key_values
        logits: Tensor = found.logits[:, -1]
        return logits

    def _checked(self, batch: Batch | Rows) -> Batch:
        batch = Batch.of(batch)
        if self.masked and batch.wanted is None:
            raise UserError(f"{type(self.network).__name__} predicts hidden tokens, and these rows hide none")
        return batch

    def _run(self, module: nn.Module, inputs: Batch) -> Any:
        if inputs.document_mask:
            raise UserError('data.document_mask: a model of family "hf" attends over whole rows')
        self._follow_recompute()
        mask = None
        if self.masked and inputs.segments is not None:
            mask = seen_keys(inputs.segments)[:, 0, 0].long()
        with whole_rows() if mask is None else contextlib.nullcontext():
            return module(input_ids=inputs.ids, attention_mask=mask, **self._options)

    def _follow_recompute(self) -> None:
        """Turn transformers' gradient checkpointing on or off, as the `recompute` of the layers says."""
        recompute = getattr(self.blocks[0], "recompute", "none") if len(self.blocks) else "none"
        if recompute == "selective":
            raise UserError('train.recompute = "selective": family "hf" has "none" and "full"')
        if (recompute == "full") == self._recomputes:
            return
        if recompute == "full" and not self.network.supports_gradient_checkpointing:
            raise UserError(f'train.recompute = "full": {type(self.network).__name__} cannot compute its layers again')
        self._recomputes = recompute == "full"
        # transformers 5.23 has named it anew
        name = "activation" if hasattr(self.network, "activation_checkpointing_enable") else "gradient"
        if self._recomputes:
            keywords = {f"{name}_checkpointing_kwargs": {"use_reentrant": False}}
            getattr(self.network, f"{name}_checkpointing_enable")(**keywords)
        else:
            getattr(self.network, f"{name}_checkpointing_disable")()


@contextlib.contextmanager
def whole_rows() -> Iterator[None]:
    """Let transformers know that each row is one sequence without padding.

    It asks the positions, which waits for the device. While a CUDA graph is recorded it cannot ask, and makes a mask
    instead (before 5.23 in any case), for which no layer was compiled: nothing could be recorded. Asking whether one is
    recorded initialises CUDA, which a process that will be forked must not do.
    """
    masks: Any = importlib.import_module("transformers.masking_utils")
    answers = {"find_packed_sequence_indices": lambda _: None, "is_tracing": lambda _=None: False}
    asked = {name: getattr(masks, name) for name in answers if hasattr(masks, name)}
    vars(masks).update(answers)
    try:
        yield
    finally:
        for name in answers:
            delattr(masks, name)
        vars(masks).update(asked)


def read_config(place: str) -> Any:
    """The config of a model, from a folder, a file or the hub."""
    if (adapter := stored_adapter(place)) is not None:
        return read_config(adapter.base)
    transformers, path = _library(), Path(place).expanduser()
    if not path.is_dir():
        check_readable(path)
    elif not (path / "config.json").is_file():
        raise UserError(f"{place}: not a model of transformers: it has no config.json")
    if not path.exists():
        spare_the_wait()
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(
                str(path) if path.exists() else place, trust_remote_code=False
            )
    except Exception as cause:  # any exception of the hub, or of a file
        raise _unreadable(place, cause) from cause
    kernel = config._attn_implementation
    if kernel is not None and "/" in str(kernel):
        raise UserError(f'{place}: its config names code of the hub for attention ("{kernel}"), which is not run')
    return config


def check_fit(config: Any, place: str, vocab_size: int, length: int) -> None:
    """Raise UserError if the model has too few ids or positions."""
    text = config.get_text_config()
    if text.vocab_size < vocab_size:
        raise UserError(
            f"{place} has {text.vocab_size:,} ids, and the tokenizer {vocab_size:,}: use the model's own tokenizer"
        )
    positions = getattr(text, "max_position_embeddings", None)
    if positions is not None and config.model_type in _FIRST_POSITION:
        positions -= (config.pad_token_id or 0) + 1
    if positions is not None and 0 < positions < length:
        raise UserError(f"data.length = {length}: {place} has {positions} positions (max_position_embeddings)")


def predicts_hidden(config: Any, place: str) -> bool:
    """Whether a model is a masked one: by the class in its config, else by the classes of its kind."""
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
    raise UserError(f"{place}: a {kind} is not a causal or masked language model of transformers")


def auto_class(masked: bool) -> Any:
    """The class of transformers that chooses a network by its config."""
    transformers = _library()
    return transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM


def load(place: str, config: Any, kind: Any, seed: int) -> Any:
    """The network on the CPU, with its stored weights, or random ones from `seed` if none are stored."""
    path = Path(place).expanduser()
    stored = not path.exists() or any(True for pattern in (*_WEIGHTS, *_PICKLED) for _ in path.glob(pattern))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if not stored:
            with quiet():
                return kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
        return load_stored(place, kind)


def load_stored(place: str, kind: Any) -> Any:
    """The network with its stored weights, on the CPU, in float32; `kind` is any class with `from_pretrained`.

    Of a folder of peft, the weights of its base, changed by its adapter.
    """
    if (adapter := stored_adapter(place)) is not None:
        network = load_stored(adapter.base, kind)
        merge_stored(network, adapter)
        return network
    path = Path(place).expanduser()
    read_config(place)
    if path.is_dir() and not any(True for pattern in _WEIGHTS for _ in path.glob(pattern)):
        raise UserError(
            f"{place}: has no weights as safetensors, and other files, as pytorch_model.bin, are not read, as they can "
            f"run code; load them where you trust them, and save them again with save_pretrained"
        )
    try:
        with quiet():
            network, info = kind.from_pretrained(
                str(path) if path.exists() else place,
                dtype=torch.float32,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as cause:  # as in read_config
        raise _unreadable(place, cause) from cause
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"{place} lacks {len(missing)} of the weights of a {type(network).__name__}, as {', '.join(missing[:3])}"
        )
    return network


def _library() -> Any:
    try:
        import transformers
    except ImportError as cause:
        raise MissingExtra("a model of transformers", "transformers", "hf") from cause
    return transformers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the messages and progress bars of transformers, and the hub's."""
    logging = _library().utils.logging
    from huggingface_hub.utils import logging as hub  # comes with transformers

    verbosity, bars = (logging.get_verbosity(), hub.get_verbosity()), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity[0])
        hub.set_verbosity(verbosity[1])
        if bars:
            logging.enable_progress_bar()


def _unreadable(place: str, cause: Exception) -> UserError:
    path = Path(place).expanduser()
    where = "cannot be read" if path.exists() else "not a folder here, and it could not be fetched from the hub"
    return UserError(f"{place}: {where} ({first_line(cause)})")
