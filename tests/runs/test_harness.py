"""Tasks of lm-evaluation-harness: what a run reaches is what the harness says of the exported model."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from test_export import some_run

from shoestring.cli.root import root
from shoestring.core.errors import UserError
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import Model
from shoestring.runs.export import export_run
from shoestring.runs.trained_model import load_run

pytest.importorskip("lm_eval", reason="lm_eval is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the harness and its libraries
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TEXTS = ["the cat sat on a mat", "a dog ran", "she said that the little dog was very happy and ran to the cat"]
TASKS = {
    "choose": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "last_word": """
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' ' + text.split(' ')[-1]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
""",
    "whole": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "say": """
output_type: generate_until
doc_to_text: "{{text.split(' ')[0]}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: [" e"], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
ITEMS = [
    {"question": text, "choices": [" and", " to the", " x"], "answer": n % 3, "text": text}
    for n, text in enumerate(TEXTS)
]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tasks on local files, as a user writes it."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    source = "dataset_path: json\ndataset_kwargs: {data_files: {test: items.jsonl}}\ntest_split: test\n"
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{source}{text}")
    return folder


def write_tokenizer_file(folder: Path) -> Path:
    """Bytes with a few merges, and an end of documents."""
    import tokenizers as library

    merges = [("t", "h"), ("th", "e"), ("Ġ", "c"), ("Ġc", "a"), ("Ġ", "d")]
    symbols = [*sorted(library.pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    backend = library.Tokenizer(library.models.BPE({symbol: index for index, symbol in enumerate(symbols)}, merges))
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    (folder / "subwords.json").write_text(backend.to_str(), encoding="utf-8")
    return folder / "subwords.json"


def scores_of(run: RunFolder, *arguments: str) -> dict[tuple[str, str], tuple[float, float | None]]:
    """What the command says, by task and metric."""
    found = CliRunner().invoke(root, ["evaluate", str(run.path), "--json", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    values = json.loads(found.stdout)
    return {(each["task"], each["metric"]): (each["value"], each["error"]) for each in values["scores"]}


def theirs_of(exported: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], float]:
    """What the harness says of a folder of transformers with its own classes."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.chdir(folder)
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)  # asks the machine for half a minute
    found = lm_eval.simple_evaluate(
        model=HFLM(pretrained=str(exported), device="cpu", dtype="float32", batch_size=2),
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    return {
        (task, key.removesuffix(",none")): value
        for task, values in found["results"].items()
        for key, value in values.items()
        if "," in key and "stderr" not in key
    }


@pytest.mark.parametrize(
    "model",
    [Model(width=16, layers=1, heads=2, kv_heads=1, tied=False), Model(family="gpt2", width=16, layers=1, heads=2)],
    ids=["llama", "gpt2"],
)
def test_a_run_scores_as_its_exported_model(
    model: Model, tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = some_run(tmp_path, model, tokenizer=f"file:{write_tokenizer_file(tmp_path)}")
    ours = scores_of(run, "--harness", str(tasks))
    export_run(run, tmp_path / "exported")
    theirs = theirs_of(tmp_path / "exported", tasks, monkeypatch)
    assert ours.keys() == theirs.keys() and len(theirs) == 8
    for key, value in theirs.items():
        assert ours[key][0] == pytest.approx(value, rel=1e-3), key
    assert ours["choose", "acc"][1] is not None


def test_a_network_without_a_class_in_transformers_is_scored_too(tmp_path: Path, tasks: Path) -> None:
    """A Perceiver AR on bytes: bits per byte are those of its likelihood, token by token."""
    spec = Model(family="perceiver_ar", width=16, layers=2, heads=2, latents=16)
    run = some_run(tmp_path, spec)
    found = scores_of(run, "--harness", str(tasks / "whole.yaml"), "--limit", "2")
    loaded = load_run(run)
    bits = 0.0
    for text in TEXTS[:2]:
        ids = [loaded.tokenizer.end, *loaded.tokenizer.encode(text)]
        for begin in range(1, len(ids), 16):  # as many tokens as it has latents are predicted at once
            end = min(begin + 16, len(ids))
            row = torch.tensor([[int(each) for each in ids[max(0, end - 17) : end - 1]]])
            with torch.no_grad():
                log_p = loaded.model.logits(row)[0].double().log_softmax(-1)
            bits -= sum(float(log_p[place - end, int(ids[place])]) for place in range(begin, end)) / math.log(2)
    assert found["whole", "bits_per_byte"][0] == pytest.approx(bits / sum(map(len, TEXTS[:2])), rel=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "needs names of tasks"),
        ("tasks,", "needs names of tasks"),
        ("absent.yaml", "absent.yaml: no such file or folder"),
        ("empty", "holds no task"),
        ("broken.yaml", "the harness stopped: "),
        ("tasks/choose.yaml", "the harness stopped: "),  # whose items.jsonl is spoiled
    ],
)
def test_what_cannot_be_a_task_is_one_line(
    given: str, message: str, tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = some_run(tmp_path, Model(width=16, layers=1, heads=2))
    Path("empty").mkdir()
    Path("broken.yaml").write_text("task: [x\n")
    (tasks / "items.jsonl").write_text("{\n")
    found = CliRunner().invoke(root, ["evaluate", str(run.path), "--harness", given])
    assert isinstance(found.exception, UserError) and message in str(found.exception)
    assert "\n" not in str(found.exception)


def test_without_the_harness_the_line_says_what_to_install(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = some_run(tmp_path, Model(width=16, layers=1, heads=2))
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    found = CliRunner().invoke(root, ["evaluate", str(run.path), "--harness", str(tasks)])
    assert isinstance(found.exception, UserError) and "pip install 'shoestring[harness]'" in str(found.exception)


@pytest.mark.parametrize("arguments", [("--on", "text:x"), ("--force",)])
def test_one_thing_is_scored_at_a_time(arguments: tuple[str, ...], tmp_path: Path) -> None:
    run = some_run(tmp_path, Model(width=16, layers=1, heads=2))
    found = CliRunner().invoke(root, ["evaluate", str(run.path), "--harness", "x.yaml", *arguments])
    assert isinstance(found.exception, UserError) and "leave one of them out" in str(found.exception)
    alone = CliRunner().invoke(root, ["evaluate", str(run.path), "--limit", "3"])
    assert isinstance(alone.exception, UserError) and "--limit" in str(alone.exception)
