"""Family "hf" against the models of transformers themselves, from folders saved from configs."""

import builtins
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from losses import loss_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shoestring.core import recipe_file
from shoestring.core.errors import MissingExtra, UserError
from shoestring.core.family import network_cost as cost
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.cost.memory import estimate_memory
from shoestring.models.batch import Batch
from shoestring.models.families.hf.counting import hf_saved_bytes
from shoestring.models.families.hf.network import CAUSAL_HEADS, HF, MASKED_HEADS, PREFIX, whole_rows
from shoestring.models.generate import Drawing, generate
from shoestring.models.language_model import build
from shoestring.models.layers.cross_entropy import IGNORED
from shoestring.models.transformers_format import save_transformers
from shoestring.runs.estimate import plan_on_gpu
from shoestring.training.learner import Learner

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 40, 16
SHAPE = {"vocab_size": 45, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"intermediate_size": 48, "max_position_embeddings": 20}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GPT2_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GROUPED = {**SHAPE, **NO_TOKENS, "num_key_value_heads": 2}
CAUSAL = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "mistral": lambda: transformers.MistralConfig(**GROUPED),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=8),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=45, n_embd=32, n_layer=2, n_head=4, n_positions=20, **NO_TOKENS, **GPT2_DROPOUT
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SHAPE, **NO_TOKENS),
    # heads of their own: no product that can be taken apart
    "gemma2": lambda: transformers.Gemma2Config(**GROUPED, head_dim=8, final_logit_softcapping=2.0),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=45,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        word_embed_proj_dim=32,
        max_position_embeddings=20,
        dropout=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=1,
    ),
    "bloom": lambda: transformers.BloomConfig(vocab_size=45, hidden_size=32, n_layer=2, n_head=4, **NO_TOKENS),
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MASKED = {
    "bert": lambda: transformers.BertConfig(**SHAPE, **NO_DROPOUT),
    "roberta": lambda: transformers.RobertaConfig(**SHAPE, **NO_DROPOUT, bos_token_id=None, eos_token_id=None),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SHAPE, **NO_DROPOUT, bos_token_id=None, eos_token_id=None),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=45,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=48,
        max_position_embeddings=20,
        dropout=0.0,
        attention_dropout=0.0,
    ),
}
every_kind = pytest.mark.parametrize("kind", [*CAUSAL, *MASKED])


def saved(folder: Path, kind: str) -> tuple[Model, Any]:
    """A model of transformers with large weights, and the folder that it was saved to as a recipe names it."""
    config = (CAUSAL | MASKED)[kind]()
    automatic = transformers.AutoModelForMaskedLM if kind in MASKED else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    theirs = automatic.from_config(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(folder / kind)
    return Model(family="hf", name=str(folder / kind)), theirs


def some_ids(rows: int = 3, tokens: int = LENGTH + 1) -> Tensor:
    """None of them is one that a config calls padding."""
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(3))


def some_batch(kind: str, padded: bool) -> Batch:
    """Rows of different lengths, or all full; of a masked model with something to predict in each."""
    ids = some_ids(3, LENGTH if kind in MASKED else LENGTH + 1)
    segments = (torch.arange(ids.shape[1]) < ids.shape[1] - 3 * torch.arange(3)[:, None]).long() if padded else None
    if kind in CAUSAL:
        return Batch(ids, segments)
    wanted = torch.where(torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.4, ids, IGNORED)
    return Batch(ids, segments, wanted=wanted if segments is None else wanted.masked_fill(segments == 0, IGNORED))


def their_loss(theirs: Any, batch: Batch) -> Tensor:
    """By transformers' own attention mask, and torch's own loss."""
    inputs, targets = batch.inputs(), batch.targets()
    mask = None if inputs.segments is None else (inputs.segments != 0).long()
    logits = theirs(input_ids=inputs.ids, attention_mask=mask).logits
    return F.cross_entropy(logits.transpose(1, 2).double(), targets, reduction="none", ignore_index=IGNORED)


@pytest.mark.parametrize("kind", CAUSAL)
def test_a_text_is_that_of_transformers(tmp_path: Path, kind: str) -> None:
    """Its likeliest tokens, with what the network keeps of those before, and read again where rows are full."""
    model, theirs = saved(tmp_path, kind)
    network, ids = build(model, VOCABULARY, LENGTH, 0), some_ids(2, 4)
    expected = theirs.generate(ids, max_new_tokens=LENGTH - 4, do_sample=False)
    likeliest = Drawing(temperature=0.0)
    assert torch.equal(generate(network, ids, expected.shape[1] - 4, length=LENGTH, drawing=likeliest), expected)
    texts = [generate(network, ids, 30, length=LENGTH, drawing=likeliest, cached=cached) for cached in (True, False)]
    assert torch.equal(*texts)


@every_kind
@pytest.mark.parametrize("padded", [False, True])
def test_losses_and_gradients_are_those_of_transformers(kind: str, padded: bool, tmp_path: Path) -> None:
    model, theirs = saved(tmp_path, kind)
    ours = build(model, VOCABULARY, LENGTH, 0)
    assert isinstance(ours, HF) and ours.training
    assert (ours.head is not None) == (kind in CAUSAL_HEADS | MASKED_HEADS)
    batch = some_batch(kind, padded)
    expected = their_loss(theirs, batch)
    assert expected.max() > 1, "the comparison must not be one of small numbers"
    losses = ours.token_losses(batch)
    assert losses.dtype == torch.float32 and not losses.requires_grad
    torch.testing.assert_close(losses.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    nats, predictions = loss_of(ours, batch)
    assert predictions == int(batch.predicted().sum())
    assert nats.item() == pytest.approx(expected.sum().item(), rel=1e-5)
    nats.backward()
    expected.sum().backward()
    gradients = {f"{PREFIX}{name}": p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        if gradients[name] is None:
            assert parameter.grad is None or not parameter.grad.any(), name
        else:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-4, msg=name)


@every_kind
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model, theirs = saved(tmp_path, kind)
    ours = build(model, VOCABULARY, LENGTH, 0).eval()
    inputs = some_batch(kind, padded=False).inputs()
    with torch.no_grad():
        expected = theirs(input_ids=inputs.ids).logits
        torch.testing.assert_close(ours.logits(inputs), expected, rtol=1e-6, atol=1e-6)
        if isinstance(ours, HF) and ours.head is not None:
            apart = ours.output().logits(ours.hidden(inputs))
            torch.testing.assert_close(apart, expected, rtol=1e-5, atol=1e-5)


@every_kind
def test_the_cost_is_counted_without_memory(kind: str, tmp_path: Path) -> None:
    model, _ = saved(tmp_path, kind)
    ours, expected = build(model, VOCABULARY, LENGTH, 0).eval(), cost(model, VOCABULARY, LENGTH)
    groups = ours.parameter_groups()
    ids = [id(parameter) for group in groups.values() for parameter in group]
    assert len(ids) == len(set(ids)) and set(ids) == {id(parameter) for parameter in ours.parameters()}
    assert {name: sum(p.numel() for p in group) for name, group in groups.items()} == expected.parameters
    assert expected.total_parameters == sum(p.numel() for p in ours.parameters())
    assert min(expected.parameters[name] for name in ("embedding", "attention", "mlp", "norm")) > 0
    assert set(expected.parameters) == {"embedding", "attention", "mlp", "norm", "head"}
    batch = some_batch(kind, padded=False)
    if batch.wanted is not None:
        batch = batch._replace(wanted=batch.ids)  # every position is predicted
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        ours.token_losses(batch)
    assert counter.get_total_flops() == expected.forward_flops_per_token * 3 * LENGTH


def test_groups_are_those_of_our_own_family(tmp_path: Path) -> None:
    for model in (Model(width=32, layers=2, heads=4, tied=False), Model(family="gpt2", width=32, layers=2, heads=4)):
        folder = tmp_path / model.family
        save_transformers(build(model, 45, 20, 0), model, 45, 20, folder)
        assert cost(Model(family="hf", name=str(folder)), 45, 20) == cost(model, 45, 20)


@every_kind
def test_layers_are_computed_again_with_the_same_gradient(kind: str, tmp_path: Path) -> None:
    model, _ = saved(tmp_path, kind)
    batch, gradients, calls = some_batch(kind, padded=False), [], []
    for recompute in ("none", "full"):
        learner = Learner(
            build(model, VOCABULARY, LENGTH, 0), Train(batch=3, lr=1e-3, recompute=recompute), torch.device("cpu")
        )
        assert len(learner.model.blocks) == 2
        seen: list[object] = []
        watched = next(m for m in learner.model.blocks[0].modules() if "norm" in type(m).__name__.lower())
        watched.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        learner.accumulate(batch, 3)
        gradients.append([p.grad for p in learner.model.parameters()])
        calls.append(len(seen))
    assert calls == [1, 2], "the second time in the backward pass"
    for one, two in zip(*gradients):
        assert (one is None) == (two is None) and (one is None or torch.equal(one, two))


def test_parts_of_layers_cannot_be_computed_again(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, "llama")
    learner = Learner(
        build(model, VOCABULARY, LENGTH, 0), Train(batch=3, lr=1e-3, recompute="selective"), torch.device("cpu")
    )
    with pytest.raises(UserError, match='"none" and "full"'):
        learner.accumulate(some_ids(), 3)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "bert"])
def test_the_loss_falls_on_a_tiny_corpus(kind: str, tmp_path: Path) -> None:
    model, _ = saved(tmp_path, kind)
    learner = Learner(build(model, VOCABULARY, LENGTH, 0), Train(batch=3, lr=1e-3), torch.device("cpu"))
    batch = some_batch(kind, padded=True)
    before = learner.score(batch, 3).nanmean().item()
    for _ in range(30):
        learner.update(learner.accumulate(batch, 3), 1e-2)
    assert learner.score(batch, 3).nanmean().item() < 0.5 * before


def test_weights_are_saved_once_under_one_name(tmp_path: Path) -> None:
    model, theirs = saved(tmp_path, "qwen2")
    ours = build(model, VOCABULARY, LENGTH, 0)
    assert isinstance(ours, HF)
    assert [name for name, _ in ours.named_parameters()] == [f"{PREFIX}{n}" for n, _ in theirs.named_parameters()]
    assert len(list(ours.blocks)) == 2 and ours.blocks is ours.network.model.layers
    save_transformers(ours, model, VOCABULARY, LENGTH, tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert all(torch.equal(one, two) for one, two in zip(theirs.parameters(), again.parameters()))
    assert again.config.use_cache


def test_a_config_alone_has_random_weights_of_the_seed(tmp_path: Path) -> None:
    CAUSAL["llama"]().save_pretrained(tmp_path / "only")
    names = [str(tmp_path / "only"), str(tmp_path / "only" / "config.json")]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, two = (build(Model(family="hf", name=name), VOCABULARY, LENGTH, 7) for name in names)
    other = build(Model(family="hf", name=names[0]), VOCABULARY, LENGTH, 8)
    assert torch.equal(torch.get_rng_state(), state), "the program's own random numbers are left alone"
    for a, b, c in zip(one.parameters(), two.parameters(), other.parameters()):
        assert torch.equal(a, b) and (a.ndim < 2 or not torch.equal(a, c))
    assert one.token_losses(some_ids()).mean().item() == pytest.approx(math.log(45), abs=0.1)


def test_half_precision_on_disk_is_float32_here(tmp_path: Path) -> None:
    _, theirs = saved(tmp_path, "llama")
    theirs.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    ours = build(Model(family="hf", name=str(tmp_path / "half")), VOCABULARY, LENGTH, 0)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}


def test_a_vocabulary_or_a_row_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = saved(tmp_path, "llama")
    roberta, _ = saved(tmp_path, "roberta")
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)  # before anything is allocated
    for vocabulary, length, said in ((46, 16, "45 ids, and the tokenizer 46"), (45, 21, r"21: .* has 20 positions")):
        with pytest.raises(UserError, match=said):
            build(model, vocabulary, length, 0)
        with pytest.raises(UserError, match=said):
            cost(model, vocabulary, length)
    with pytest.raises(UserError, match="has 18 positions"):  # the first two are those of padding
        cost(roberta, 45, 19)
    assert cost(roberta, 45, 18).total_parameters > 0


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "unheard-of"}')
    transformers.T5Config(vocab_size=45, d_model=32, num_layers=1, num_heads=2).save_pretrained(tmp_path / "t5")
    transformers.ViTConfig().save_pretrained(tmp_path / "vit")
    for name, said in (
        (str(tmp_path / "empty"), "no config.json"),
        (str(tmp_path / "broken"), "cannot be read"),
        ("no/such/place", "not a folder here, and it could not be fetched from the hub"),
        (str(tmp_path / "vit"), "not a causal or masked language model"),
        (str(tmp_path / "t5"), "not a causal or masked language model"),
    ):
        with pytest.raises(UserError, match=said):
            cost(Model(family="hf", name=name), 5, 8)


def test_a_model_that_sees_later_tokens_is_refused(tmp_path: Path) -> None:
    config = transformers.XLNetConfig(vocab_size=45, d_model=32, n_layer=2, n_head=4, d_inner=48)
    transformers.XLNetLMHeadModel(config).save_pretrained(tmp_path / "xlnet")
    with pytest.raises(UserError, match="sees later tokens"):
        build(Model(family="hf", name=str(tmp_path / "xlnet")), VOCABULARY, LENGTH, 0)


def test_a_mixture_of_experts_is_counted_with_those_that_a_token_has(tmp_path: Path) -> None:
    """By hand: products of attention, the router, and two of the four experts with three matrices each."""
    config = transformers.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)
    config.save_pretrained(tmp_path / "experts")
    found = cost(Model(family="hf", name=str(tmp_path / "experts")), VOCABULARY, LENGTH)
    d, f, keys = 32, 48, 16
    layer = 2 * (2 * d * d + 2 * keys * d) + 4 * LENGTH * d + 2 * 4 * d + 2 * 2 * 3 * f * d
    assert found.forward_flops_per_token == 2 * layer + 2 * d * 45
    assert found.total_parameters == sum(p.numel() for p in transformers.MixtralForCausalLM(config).parameters())


def test_weights_that_lack_a_head_are_refused(tmp_path: Path) -> None:
    transformers.BertModel(MASKED["bert"]()).save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match=r"lacks \d+ of the weights of a BertForMaskedLM, as cls"):
        build(Model(family="hf", name=str(tmp_path / "bare")), VOCABULARY, LENGTH, 0)


def test_rows_that_do_not_suit_a_model_are_refused(tmp_path: Path) -> None:
    causal = build(saved(tmp_path, "gpt2")[0], VOCABULARY, LENGTH, 0)
    masked = build(saved(tmp_path, "bert")[0], VOCABULARY, LENGTH, 0)
    with pytest.raises(UserError, match="attends over whole rows"):
        causal(Batch(some_ids(), torch.ones_like(some_ids()), document_mask=True))
    with pytest.raises(UserError, match="BertForMaskedLM predicts hidden tokens"):
        masked(some_ids())


def test_a_row_of_padding_stays_finite(tmp_path: Path) -> None:
    masked = build(saved(tmp_path, "bert")[0], VOCABULARY, LENGTH, 0)
    batch = some_batch("bert", padded=True)
    assert batch.segments is not None and batch.wanted is not None
    batch.segments[2], batch.wanted[2] = 0, IGNORED
    masked(batch).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in masked.parameters())


def test_classes_decide_what_is_predicted(tmp_path: Path) -> None:
    """By the class that a config names; without one, by its kind."""
    for kind, changes, masked in (
        ("bert", {"architectures": ["BertLMHeadModel"], "is_decoder": True}, False),
        ("bert", {"architectures": None, "is_decoder": True}, False),
        ("bert", {"architectures": ["BertForPreTraining"]}, True),
        ("bert", {"architectures": None}, True),
        ("gpt2", {"architectures": ["GPT2Model"]}, False),
        ("gpt2", {"architectures": None}, False),
    ):
        folder = tmp_path / f"{kind}{len(list(tmp_path.iterdir()))}"
        (CAUSAL | MASKED)[kind]().save_pretrained(folder)
        values = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(values))
        ours = build(Model(family="hf", name=str(folder)), VOCABULARY, LENGTH, 0)
        assert isinstance(ours, HF) and ours.masked == masked


def test_without_transformers_the_install_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "transformers")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"pip install 'shoestring\[hf\]'"):
        build(Model(family="hf", name="gpt2"), VOCABULARY, LENGTH, 0)


# --- by counting alone


@pytest.mark.parametrize(("kind", "bf16"), [("llama", False), ("llama", True), ("gpt2", True), ("bert", True)])
def test_saved_activations_are_those_that_torch_saves(kind: str, bf16: bool, tmp_path: Path) -> None:
    """Of a real pass on a CPU; what is left of copies of weights drops out of the difference of two batches."""
    model, network = saved(tmp_path, kind)
    found = []
    for rows in (2, 4):
        storages = {}

        def keep(x: Tensor, storages: dict[int, Any] = storages) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
            return x

        ids = torch.zeros(rows, LENGTH, dtype=torch.long)
        half = torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16)
        with half, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            last = network.train().base_model(input_ids=ids).last_hidden_state
        found.append(sum(storage.nbytes() for storage in storages.values()) + last.untyped_storage().nbytes())
    counted = hf_saved_bytes(model, VOCABULARY, LENGTH, 2 if bf16 else 4)["activations"]
    assert counted == pytest.approx((found[1] - found[0]) / 2, rel=0.15)


def test_memory_that_depends_on_numbers_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, network = saved(tmp_path, "llama")
    layer = type(network.base_model.layers[0].mlp)
    plain = layer.forward
    monkeypatch.setattr(layer, "forward", lambda self, x: plain(self, x) if x.sum().item() else x)
    with pytest.raises(UserError, match="its memory cannot be counted from shapes alone"):
        hf_saved_bytes(model, VOCABULARY, LENGTH, 4)


def test_a_model_of_transformers_is_planned_on_a_gpu_by_name(tmp_path: Path) -> None:
    place = saved(tmp_path, "llama")[0].name
    values = {
        "budget": {"time": "1h"},
        "data": {"length": LENGTH, "stream": "markov:40"},
        "train": {"batch": 8, "lr": 1e-3},
    }
    recipe = recipe_file.build(values | {"model": {"family": "hf", "name": place}}, "test")
    plan = plan_on_gpu(recipe, VOCABULARY, "NVIDIA H200")
    known = cost(recipe.model, VOCABULARY, LENGTH)
    assert plan.flops == pytest.approx((plan.tokens or 0) * known.train_flops_per_token)
    assert plan.peak_bytes is not None and plan.peak_bytes > 16 * known.total_parameters
    assert any("estimated for NVIDIA H200" in line.reason for line in plan.lines)
    ours = {"family": "llama", "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 48, "tied": False}
    same = estimate_memory(recipe_file.build(values | {"model": ours}, "test"), 45, "cuda")
    theirs = estimate_memory(recipe, VOCABULARY, "cuda")
    assert theirs.at(1 << 16) == pytest.approx(same.at(1 << 16), rel=1.25), "eager passes save about twice as much"
    assert theirs.at(1 << 16) > same.at(1 << 16)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox"])
def test_a_pass_that_is_recorded_has_the_masks_of_any_other(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a CUDA graph is recorded, transformers cannot ask whether rows hold several sequences, and makes masks."""
    network = build(saved(tmp_path, kind)[0], VOCABULARY, LENGTH, 0)
    seen: list[Any] = []
    network.blocks[0].register_forward_pre_hook(
        lambda _, args, given: seen.append((given.get("attention_mask"), *args[1:])), with_kwargs=True
    )
    plain = network(some_ids())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert torch.equal(network(some_ids()), plain)
    assert all(mask is None or not isinstance(mask, Tensor) for each in seen for mask in each[:1])
    masks = sys.modules["transformers.masking_utils"]
    with whole_rows():
        assert not masks.is_tracing(None), "else 5.17 makes a mask of any rows"
    assert masks.is_tracing(None), "as it was for others"
    assert masks.find_packed_sequence_indices(torch.arange(4)[None] % 2) is not None


def test_counting_does_not_look_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking whether a CUDA graph is recorded initialises CUDA, and `measure` counts before it forks."""
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(asked.append(1)))
    model = saved(tmp_path, "qwen2")[0]
    cost(model, VOCABULARY, LENGTH)
    hf_saved_bytes(model, VOCABULARY, LENGTH, 2)
    assert not asked
