"""Problems of a recipe between fields that are right each on its own."""

from __future__ import annotations

import dataclasses

from shoestring.core.recipe import Data, Model, Recipe


def contradictions(recipe: Recipe) -> list[str]:
    """All of them, a line each, with the fields and what to do."""
    found = [] if recipe.hmm is None else _hmm_contradictions(recipe)
    found += _stream_contradictions(recipe) + _packing_contradictions(recipe.data)
    budget, name = recipe.budget, recipe.run.name
    if not any((budget.time, budget.flops, budget.tokens, budget.steps, budget.epochs)):
        found.append("budget: nothing limits the run; give at least one of time, flops, tokens, steps, epochs")
    if recipe.hmm is None:
        found += _batch_contradictions(recipe) + _model_contradictions(recipe)
    if not name or name in (".", "..") or set("/\0") & set(name):
        found.append(f'run.name = "{name}": must be the name of a folder, without "/"')
    return found


def _batch_contradictions(recipe: Recipe) -> list[str]:
    """At most one: the batch is not known before it is given right."""
    train, length = recipe.train, recipe.data.length
    if train.batch is None and train.tokens is None:
        return ["train: no effective batch; give batch (in rows) or tokens"]
    if train.batch is not None and train.tokens is not None:
        return [f"train.batch = {train.batch} and train.tokens = {train.tokens}: give one of the two"]
    if train.tokens is not None and int(train.tokens) % length:
        return [f"train.tokens = {train.tokens}: must be a multiple of data.length = {length}"]
    if train.per_device is not None and recipe.batch % train.per_device:
        return [f"train.per_device = {train.per_device}: must divide the effective batch of {recipe.batch} rows"]
    return []


_ONLY = {
    "name": ("hf",),
    "kv_heads": ("llama",),
    "bias": ("llama",),
    "rotary_base": ("llama",),
    "rotary_scaling": ("llama",),
    "norm_eps": ("llama",),
    "positions": ("gpt2", "masked_lm"),
    "classes": ("masked_lm",),
    "latents": ("perceiver_ar",),
    "prefix_dropout": ("perceiver_ar",),
}
"""Fields that only some families have."""
_OF_CONFIG = ("width", "layers", "heads", "hidden", "tied", "dropout")
"""Fields of a network that family "hf" has from elsewhere."""


def _model_contradictions(recipe: Recipe) -> list[str]:
    """Of the network: fields of another family, shapes that do not go together, data that it cannot read."""
    found = _fields_of_other_families(recipe.model)
    if recipe.train.optimizer == "muon" and recipe.parallel is not None and recipe.parallel.shard:
        found.append('train.optimizer = "muon": needs whole matrices, and parallel.shard divides them')
    if recipe.model.family == "hf":
        found += _hf_contradictions(recipe)
    else:
        found += _shape_contradictions(recipe.model, recipe.data) + _latent_contradictions(recipe.model, recipe.data)
        if (recipe.data.label is None) != (recipe.model.classes is None):
            found.append("data.label and model.classes: give both, or none of the two")
    return found + _masked_contradictions(recipe)


def _fields_of_other_families(model: Model) -> list[str]:
    found = []
    for name in given_fields(model):
        families = ("llama", "gpt2", "perceiver_ar", "masked_lm") if name in _OF_CONFIG else _ONLY.get(name)
        if families is not None and model.family not in families:
            found.append(f'model.{name}: model.family = "{model.family}" has none; it is for {" and ".join(families)}')
    return found


def _hf_contradictions(recipe: Recipe) -> list[str]:
    found = []
    if recipe.model.name is None:
        found.append('model.name: missing; family "hf" needs a hub name or a folder')
    if recipe.data.within:
        found.append("data.within: models of transformers attend over whole rows")
    if recipe.train.recompute == "selective":
        found.append('train.recompute = "selective": family "hf" has "none" or "full"')
    return found


def _shape_contradictions(model: Model, data: Data) -> list[str]:
    found = []
    kv_heads = model.kv_heads or model.heads
    if model.width % model.heads or (model.family == "llama" and (model.width // model.heads) % 2):
        parts = " into even parts" if model.family == "llama" else ""
        found.append(f"model.heads = {model.heads}: must divide model.width = {model.width}{parts}")
    elif model.family == "perceiver_ar" and model.width < 2 * model.heads:
        found.append(f"model.heads = {model.heads}: must divide model.width = {model.width} into 2 or more each")
    if model.rotary_scaling is not None:
        found += _scaling_contradictions(model.rotary_scaling)
    if model.heads % kv_heads:
        found.append(f"model.kv_heads = {kv_heads}: must divide model.heads = {model.heads}")
    if (model.positions or data.length) < data.length:
        found.append(f"model.positions = {model.positions}: must be at least data.length = {data.length}")
    return found


def _scaling_contradictions(scaling: str) -> list[str]:
    kind, factor, *others = scaling.split(":")
    found = []
    if float(factor) < 1:
        found.append(f"model.rotary_scaling = {scaling}: its factor must be at least 1")
    if kind == "llama3" and not 0 < float(others[0]) < float(others[1]):
        found.append(f"model.rotary_scaling = {scaling}: LOW {others[0]} must be above 0 and below HIGH {others[1]}")
    return found


def _latent_contradictions(model: Model, data: Data) -> list[str]:
    found = []
    if model.family == "perceiver_ar" and data.within:
        found.append("data.within: a Perceiver AR attends over whole rows")
    if model.family == "perceiver_ar" and model.latents is None:
        found.append("model.latents: missing; a Perceiver AR predicts so many of the last positions of a row")
    elif (model.latents or 0) > data.length:
        found.append(f"model.latents = {model.latents}: must be at most data.length = {data.length}")
    return found


def _masked_contradictions(recipe: Recipe) -> list[str]:
    data = recipe.data
    masked = recipe.model.family == "masked_lm"
    names = ("label",) if recipe.model.family == "hf" else ("masked", "whole_words", "label")
    given = [name for name in names if name in given_fields(data) and not masked]
    found = [f'data.{name}: is for model.family = "masked_lm"' for name in given]
    if masked and data.within:
        found.append("data.within: an encoder sees the whole of a row")
    columns = data.stream is None and data.source.partition(":")[0] not in ("stories", "text", "paragraphs")
    if data.label is not None and not columns:
        found.append(f'data.label = "{data.label}": needs a source with columns: jsonl, csv, parquet or hf')
    return found


def given_fields(section: Model | Data) -> list[str]:
    """Names of the fields that are not at their defaults."""
    return [f.name for f in dataclasses.fields(section) if getattr(section, f.name) != f.default]


def _hmm_contradictions(recipe: Recipe) -> list[str]:
    found = []
    for name in ("packing", "within", "shift", "unique"):
        if name in given_fields(recipe.data):
            more = "; hmm.unique takes a sentence once" if name == "unique" else ""
            found.append(f"data.{name}: an HMM reads sentences, joined and cut{more}")
    if not recipe.data.tokenizer.startswith("words:"):
        found.append(f'data.tokenizer = "{recipe.data.tokenizer}": an HMM takes "words:N", its alphabet of N words')
    given = {name: getattr(recipe.budget, name) for name in ("flops", "tokens", "steps")}
    found += [f"budget.{n} = {v}: the budget of an HMM is time or epochs" for n, v in given.items() if v is not None]
    if recipe.data.source == "stories" and recipe.data.documents is None:
        found.append('data.source = "stories" has no end: an HMM reads a fixed set; give data.documents')
    if recipe.data.length < 2:
        found.append(f"data.length = {recipe.data.length}: a row of an HMM holds at least 2 tokens")
    return found


def _packing_contradictions(data: Data) -> list[str]:
    found = []
    if data.shift and data.packing != "concat":
        found.append(f'data.shift: rows of data.packing = "{data.packing}" hold whole documents and cannot be shifted')
    if data.stream is not None and (data.within or data.shift or data.packing != "concat"):
        found.append("data.packing, within and shift: the rows of a stream are no documents, and are never read twice")
    if data.source.startswith("store:"):
        given = [name for name in ("documents", "unique", "label") if name in given_fields(data)]
        found += [f"data.{name}: {data.source} is made already, of the documents that it has" for name in given]
    if data.unique and data.stream is not None:
        found.append("data.unique: no two rows of a stream are the same one")
    return found


def _stream_contradictions(recipe: Recipe) -> list[str]:
    data, stream = recipe.data, recipe.stream_settings
    if data.stream is None:
        return [] if recipe.stream is None else ['stream: needs data.stream, such as stream = "hmm:runs/icll-hmm"']
    found = []
    if recipe.hmm is not None:
        found.append(f'data.stream = "{data.stream}": an HMM is fitted to a source; a network is trained on a stream')
    if data.source != "stories":
        found.append(f'data.source = "{data.source}" and data.stream = "{data.stream}": give one of the two')
    if data.documents is not None:
        found.append(f"data.documents = {data.documents}: a stream has rows, not documents")
    if recipe.budget.epochs is not None:
        found.append("budget.epochs: a stream never comes to an end, so an epoch has no length")
    if data.stream.startswith("markov:"):
        symbols = int(data.stream.removeprefix("markov:"))
        if stream.fewest > stream.most:
            found.append(f"stream.fewest = {stream.fewest}: must be at most stream.most = {stream.most}")
        if not stream.most <= symbols <= 1 << 16:
            found.append(f'data.stream = "{data.stream}": must have stream.most = {stream.most} to 65536 symbols')
    return found
