"""Problems of a recipe whose fields are valid on their own but not together."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path

from shoestring.core.family import family_of
from shoestring.core.parallel import Parallel
from shoestring.core.recipe import Recipe
from shoestring.core.registry import registry
from shoestring.core.sections import MOST_ROWS, Data, Model
from shoestring.core.train_section import OF_MUON, Train
from shoestring.core.units import counted

_MASKED = ("masked", "whole_words", "label")
"""Fields of `[data]` that only some families read."""


def problems(recipe: Recipe, unread: Collection[str] = ()) -> list[str]:
    """A line per problem, with the fields and what to do.

    The fields `unread` have their defaults, as what was given could not be read: a line that names one of them, or a
    whole section of one, is left out.
    """
    names = {part for field in unread for part in (field, f"{field.partition('.')[0]}:")}
    named = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?!\w)" for name in names) or r"(?!)")
    return [line for line in _problems(recipe) if not named.search(line)]


def _problems(recipe: Recipe) -> list[str]:
    fits_hmm = recipe.kind == "hmm"
    found = _hmm_problems(recipe) if fits_hmm else _batch_problems(recipe) + _model_problems(recipe)
    found += _stream_problems(recipe, fits_hmm) + _packing_problems(recipe.data) + _scored_problems(recipe.data)
    found += _prompt_problems(recipe, fits_hmm) + _context_problems(recipe)
    budget, name = recipe.budget, recipe.run.name
    if not any((budget.time, budget.flops, budget.tokens, budget.steps, budget.epochs)):
        found.append("budget: nothing limits the run; give at least one of time, flops, tokens, steps, epochs")
    if budget.steps is not None and "train.batch" in recipe.autos:
        found.append("train: no effective batch, and budget.steps says nothing without one; give batch or tokens")
    files = {str(Path(spec.file).expanduser()) for spec in recipe.code}
    if len({Path(file).name for file in files}) < len(files):
        found.append(
            f"{' and '.join(sorted(files))}: two files of one name; a run keeps both in one folder, so rename one"
        )
    if not name or name in (".", "..") or set("/\0") & set(name):
        found.append(f'run.name = "{name}": must be the name of a folder, without "/"')
    return found


def _batch_problems(recipe: Recipe) -> list[str]:
    """At most one, since each check needs a batch that passed those before."""
    train, length = recipe.train, recipe.data.length
    if train.batch is not None and train.tokens is not None:
        return [f"train.batch = {train.batch} and train.tokens = {train.tokens}: give one of the two"]
    if "train.batch" in recipe.autos:
        return []
    if train.tokens is not None and int(train.tokens) % length:
        return [f"train.tokens = {train.tokens}: must be a multiple of data.length = {length}"]
    if recipe.batch > MOST_ROWS:
        rows = counted(recipe.batch, "row")
        return [f"train.tokens = {train.tokens}: {rows} of data.length = {length}; a batch has at most {MOST_ROWS:,}"]
    if train.per_device is not None and recipe.batch % train.per_device:
        rows = f"{counted(recipe.batch, 'row')} (train.batch)"
        if train.tokens is not None:
            rows = f"{counted(recipe.batch, 'row')} (train.tokens ÷ data.length)"
        return [f"train.per_device = {train.per_device}: must divide the effective batch of {rows}"]
    return []


def _model_problems(recipe: Recipe) -> list[str]:
    """Problems of the network: fields of other families, inconsistent shapes, data that it cannot read."""
    family, data, train = family_of(recipe.model), recipe.data, recipe.train
    is_family = f'model.family = "{family.name}"'

    def foreign(name: str) -> str:
        return f"{is_family} has none; it is for {_families_with(name)}"

    others = [name for name in given_fields(recipe.model) if name not in (*family.fields, "family", "init")]
    found = [f"model.{name}: {foreign(name)}" for name in others]
    found += [] if recipe.parallel is None else _parallel_problems(recipe.parallel, train, recipe.is_tuned)
    found += _size_problems(recipe) or family.problems(recipe)
    if train.optimizer != "muon":
        given = [name for name in OF_MUON if getattr(train, name) is not None]
        found += [f'train.{name}: train.optimizer = "{train.optimizer}" has none; it is for "muon"' for name in given]
    if train.head_lr is not None and {"size", "tied"} <= family.fields and recipe.model.tied:
        found.append(
            f"train.head_lr = {train.head_lr}: the head is the embedding; give model.tied = false, or embedding_lr"
        )
    if recipe.lora is not None and not family.adapts:
        found.append(f"lora: {is_family} has no adapters; freeze parts of it with train.freeze instead")
    if data.document_mask and not family.document_mask:
        found.append(f"data.document_mask: {is_family} attends over whole rows")
    if train.recompute not in family.recompute:
        allowed = " or ".join(f'"{name}"' for name in family.recompute)
        found.append(f'train.recompute = "{train.recompute}": {is_family} has {allowed}')
    others = [name for name in given_fields(data) if name in _MASKED and name not in family.data_fields]
    found += [f"data.{name}: {foreign(name)}" for name in others]
    # a store has its own message
    if data.label is not None and (data.stream or not (data.source.has_columns or data.source.kind == "store")):
        known = ", ".join(name for name, form in registry("format").items() if form.has_columns)
        found.append(f'data.label = "{data.label}": needs a source with columns: {known} or hf')
    return found


_LOCAL = ("sync_every", "sync_spacing", "outer_lr", "outer_momentum", "difference_bits", "parts", "batch_moments")
_ASYNC = ("max_staleness", "delay_compensation")
"""Fields of `[parallel]` that only one strategy reads."""


def _parallel_problems(parallel: Parallel, train: Train, tuned: bool) -> list[str]:
    found, strategy = [], f'parallel.strategy = "{parallel.shares}"'
    if parallel.shard and not registry("optimizer")[train.optimizer].shards:
        found.append(f'train.optimizer = "{train.optimizer}": needs whole matrices, and parallel.shard divides them')
    if parallel.shard and tuned:
        found.append("parallel.shard: frozen parts and adapters are for whole models; leave one of the two out")
    if train.grow is not None and (parallel.shard or parallel.shares != "sync"):
        found.append("train.grow: is for whole models that are updated together; leave parallel out, or this")
    if parallel.shares != "local":
        given = [name for name in _LOCAL if getattr(parallel, name) is not None]
        found += [f'parallel.{name}: {strategy} has none; it is for parallel.strategy = "local"' for name in given]
    if parallel.shares != "async":
        given = [name for name in _ASYNC if getattr(parallel, name) is not None]
        found += [f'parallel.{name}: {strategy} has none; it is for parallel.strategy = "async"' for name in given]
    if parallel.shares == "sync":
        return found
    if parallel.shard:
        found.append(f"parallel.shard: {strategy} gives each worker the whole model; leave one of the two out")
    if train.ema is not None:
        found.append(f"train.ema: is a mean of the weights of one worker, and {strategy} has several; leave it out")
    if parallel.shares == "local":
        found += _average_problems(parallel, train)
    elif (parallel.max_staleness or 0) < (parallel.workers or 1) - 1 and parallel.max_staleness is not None:
        found.append(
            f"parallel.max_staleness = {parallel.max_staleness}: must be at least parallel.workers − 1 = "
            f"{(parallel.workers or 1) - 1}: gradients of the same weights are applied one after the other"
        )
    if parallel.shares == "async" and train.precision == "fp16":
        found.append(f'train.precision = "fp16": {strategy} has one loss scale for each worker; take "fp32" or "bf16"')
    return found


def _average_problems(parallel: Parallel, train: Train) -> list[str]:
    """What cannot happen between two averages."""
    found = []
    if (parallel.parts or 1) > parallel.every:
        found.append(f"parallel.parts = {parallel.parts}: must be at most parallel.sync_every = {parallel.every}")
    if train.save_every is not None and parallel.sync_spacing == "lr":
        found.append(
            'train.save_every: with parallel.sync_spacing = "lr" averages are not at multiples of a step, and between '
            "two of them there is no one model to save; leave one of the two out"
        )
    elif train.save_every is not None and train.save_every % parallel.every:
        found.append(
            f"train.save_every = {train.save_every}: must be a multiple of parallel.sync_every = {parallel.every}; "
            f"between two averages there is no one model to save"
        )
    if train.save_steps is not None:
        found.append(
            f'train.save_steps: with parallel.strategy = "local" give train.save_every, a multiple of {parallel.every}'
        )
    return found


def _size_problems(recipe: Recipe) -> list[str]:
    """What is given beside model.size = "auto", which chooses it."""
    if recipe.model.size is None:
        return []
    given = given_fields(recipe.model)
    shapes = [name for name in ("width", "layers", "heads", "kv_heads", "hidden", "init") if name in given]
    found = [f'model.{name} and model.size = "auto": give one of the two' for name in shapes]
    if recipe.budget.time is None and recipe.budget.flops is None:
        found.append('model.size = "auto": needs budget.time or budget.flops, for which it is chosen')
    return found


def _families_with(field: str) -> str:
    families = registry("family").items()
    found = [name for name, family in families if field in (*family.fields, *family.data_fields)]
    return " and ".join(found) or 'a module of your own, "file.py:name"'


def given_fields(section: Model | Data) -> list[str]:
    """Names of the fields that are not at their defaults."""
    return [f.name for f in dataclasses.fields(section) if getattr(section, f.name) != f.default]


def _hmm_problems(recipe: Recipe) -> list[str]:
    found, data = [], recipe.data
    if recipe.evaluate.overlap is not None:
        found.append(f'evaluate.overlap = "{recipe.evaluate.overlap}": is for networks that predict the next token')
    if recipe.lora is not None:
        found.append("lora: an HMM has no layers to adapt; leave the section out")
    if recipe.strategy != "sync":
        found.append(f'parallel.strategy = "{recipe.strategy}": is for networks; an HMM has "sync"')
    if data.validation is not None:
        found.append(f"data.validation{_shown(data)}: an HMM is scored on held-out sentences of its source")
    for name in ("packing", "document_mask", "random_offset", "unique"):
        if name in given_fields(data):
            more = "; hmm.unique leaves out repeated sentences" if name == "unique" else ""
            found.append(f"data.{name}: an HMM reads sentences, joined and cut{more}")
    if data.tokenizer.words is None:
        found.append(f'data.tokenizer = "{data.tokenizer}": an HMM takes "words:N", its alphabet of N words')
    if recipe.budget.epochs == "auto":
        found.append('budget.epochs = "auto": is for networks; give hmm.tolerance to stop an HMM that learns no more')
    given = {name: getattr(recipe.budget, name) for name in ("flops", "tokens", "steps")}
    found += [f"budget.{n} = {v}: the budget of an HMM is time or epochs" for n, v in given.items() if v is not None]
    if data.source == "stories" and data.documents is None:
        found.append('data.source = "stories" is endless, and an HMM reads a fixed set; give data.documents')
    saved = {name: getattr(recipe.train, name) for name in ("save_every", "save_steps")}
    found += [f"train.{n} = {v}: is for networks; train.keep is for both" for n, v in saved.items() if v is not None]
    if data.length < 2:
        found.append(f"data.length = {data.length}: a row of an HMM holds at least 2 tokens")
    return found


def _packing_problems(data: Data) -> list[str]:
    found = []
    if data.random_offset and data.packing != "concat":
        found.append(f'data.random_offset: rows of data.packing = "{data.packing}" start with a document')
    if data.stream is not None and (data.document_mask or data.random_offset or data.packing != "concat"):
        found.append(
            "data.packing, document_mask and random_offset: rows of a stream hold no documents and are read once"
        )
    if data.source.kind == "store":
        given = [name for name in ("documents", "unique", "label", *_PAIR) if name in given_fields(data)]
        found += [f"data.{name}: {data.source} exists already, with its own documents" for name in given]
    if data.unique and data.stream is not None:
        found.append("data.unique: the rows of a stream are never repeated")
    return found


_PAIR = ("prompt", "completion")


def _prompt_problems(recipe: Recipe, fits_hmm: bool) -> list[str]:
    """Problems of prompts and completions; a store has its own message."""
    data = recipe.data
    given = [name for name in _PAIR if getattr(data, name) is not None]
    if not given or data.source.kind == "store":
        return []
    both = " and ".join(f"data.{name}" for name in given)
    if len(given) == 1:
        other = next(name for name in _PAIR if name not in given)
        return [f"{both}: needs data.{other}: a document has a prompt, which is read, and a completion to predict"]
    found = []
    if fits_hmm or "label" in family_of(recipe.model).data_fields:  # of hf, only its config says it: `check_source`
        what = "an HMM" if fits_hmm else f'model.family = "{recipe.model.family}"'
        found.append(f"{both}: {what} does not predict the next token; leave them out, or take a causal family")
    if data.prompt == data.completion:
        found.append(f'{both}: both are "{data.prompt}"; name two columns')
    if "column" in given_fields(data):
        found.append(f'data.column = "{data.column}": {both} take its place; leave it out')
    if data.stream is not None or not (data.source.has_columns or data.source.kind == "code"):
        known = ", ".join(name for name, form in registry("format").items() if form.has_columns)
        found.append(f'{both}: need a source with columns: {known}, hf, or "my_data.py:name" that yields mappings')
    return found


def _shown(data: Data) -> str:
    """The value of data.validation; a table is not repeated."""
    return "" if isinstance(data.validation, dict) else f' = "{data.validation}"'


def _scored_problems(data: Data) -> list[str]:
    """Problems of what is scored: there is nothing, or two texts are the same."""
    found = []
    if data.heldout == 0 and data.validation is None:
        found.append("data.heldout = 0: leaves nothing to score; give data.validation, or a share above 0")
    if not isinstance(data.validation, dict):
        return found
    if not data.validation:
        found.append('data.validation: the table is empty; name a text, as books = "text:books.txt", or leave it out')
    names: dict[str, str] = {}
    for name, source in data.validation.items():
        if not re.fullmatch(r"[\w-]+", name):
            found.append(f'data.validation: the name "{name}" must be of letters, digits, "_" and "-"')
        if (other := names.setdefault(source, name)) != name:
            found.append(f'data.validation: {other} and {name} are the same text, "{source}"; leave one out')
    return found


def _context_problems(recipe: Recipe) -> list[str]:
    """At most one: why the rows that are scored cannot begin with context."""
    context, data, model = recipe.evaluate.context, recipe.data, recipe.model
    if context is None:
        return []
    given, causal = f"evaluate.context = {context}", "is for networks that predict every next token"
    if recipe.kind == "hmm":
        return [f"{given}: {causal}, and an HMM reads sentences; leave it out"]
    family = family_of(model)
    if "label" in family.data_fields:  # of hf, only its config says it: `check_source`
        return [f'{given}: {causal}, and model.family = "{family.name}" predicts hidden ones; leave it out']
    if "latents" in family.fields:
        return [f'{given}: {causal}, and model.family = "{family.name}" the last model.latents of a row; leave it out']
    if data.stream is not None:
        return [f"{given}: rows of a stream are not parts of one text; leave it out"]
    if data.packing != "concat":
        return [f'{given}: rows of data.packing = "{data.packing}" do not overlap; take "concat", or leave it out']
    if context >= data.length:
        return [f"{given}: must be less than data.length = {data.length}, so that something is scored"]
    return []


def _stream_problems(recipe: Recipe, fits_hmm: bool) -> list[str]:
    data, stream = recipe.data, recipe.stream_settings
    if data.stream is None:
        return [] if recipe.stream is None else ['stream: needs data.stream, such as stream = "hmm:runs/icll-hmm"']
    found = []
    if fits_hmm:
        found.append(f'data.stream = "{data.stream}": an HMM is fitted to a source; a network is trained on a stream')
    if data.validation is not None:
        found.append(f"data.validation{_shown(data)}: a stream is scored on rows of its own")
    if data.source != "stories":
        found.append(f'data.source = "{data.source}" and data.stream = "{data.stream}": give one of the two')
    if data.documents is not None:
        found.append(f"data.documents = {data.documents}: a stream has rows, not documents")
    if recipe.budget.epochs is not None:
        found.append("budget.epochs: a stream is endless, so it has no epochs")
    if (symbols := data.stream.symbols) is not None:
        if stream.fewest > stream.most:
            found.append(f"stream.fewest = {stream.fewest}: must be at most stream.most = {stream.most}")
        if not stream.most <= symbols <= 1 << 16:
            found.append(f'data.stream = "{data.stream}": must have stream.most = {stream.most} to 65536 symbols')
    return found
