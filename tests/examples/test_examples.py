"""The examples run: a network and a corpus of one's own, and the notebooks, each in a kernel of its own."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from commands import NO_FIGURES, Started, alone_in_its_group

import shoestring as ss
from shoestring.core.errors import RunError, UserError
from shoestring.core.recipe_file import dump

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example in a folder of its own, trained."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLES / "own_model", folder, dirs_exist_ok=True)
    (folder / "few.toml").write_text(dump(recipe_in(folder)))
    process = Started(["train", "few.toml"], folder, {NO_FIGURES: "1"})
    _, said = process.communicate(300)
    assert process.returncode == 0, said
    return folder


def recipe_in(folder: Path) -> ss.Run:
    """The example's recipe with few steps, and places in its folder."""
    return ss.load(  # type: ignore[return-value]
        folder / "recipe.toml",
        {
            "budget.time": None, "budget.steps": 40, "train.per_device": 16, "run.folder": str(folder / "runs"),
            "data.folder": str(folder / "stores"), "data.source": f"{folder}/my_data.py:documents",
            "model.family": f"{folder}/my_model.py:Net",
        },
    )  # fmt: skip


def test_a_network_and_a_corpus_of_ones_own_learn(own: Path) -> None:
    run = ss.open_run(own / "runs/own-model")
    assert run.evaluation.loss < 0.8 * run.evaluation.baselines["unigram"]
    assert run.profile.cost.parameters["embedding"] == 42 * 32 and run.profile.cost.forward_flops_per_token > 0
    assert run.plan.entries == 800, "the corpus came to its end"
    assert run.generate("a fox", max_tokens=3, temperature=0)[0].startswith("a fox ")
    assert (run.folder.code / "my_model.py").read_bytes() == (own / "my_model.py").read_bytes()
    assert ss.evaluate(run, "best").loss == pytest.approx(run.evaluation.loss), "by the copies in the run"


def test_a_run_keeps_to_its_code(own: Path) -> None:
    text = (own / "my_model.py").read_text()
    (own / "my_model.py").write_text(text + "\n# another\n")
    try:
        with pytest.raises(RunError, match=r"my_model.py differs from the copy that .* started with"):
            ss.train(recipe_in(own), show=False)
    finally:
        (own / "my_model.py").write_text(text)


def test_code_of_a_stranger_s_run_is_not_run(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = tmp_path / "stranger"
    shutil.copytree(own / "runs/own-model", stranger)
    (stranger / "code/my_model.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n")
    for use in (ss.evaluate, ss.generate, lambda run: ss.open_run(run).model()):
        with pytest.raises(UserError, match="came with a run and never ran here"):
            use(stranger)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("SHOESTRING_TRUST_CODE", "1")
    with pytest.raises(UserError, match="has no Net"):
        ss.evaluate(stranger)
    assert (tmp_path / "ran").exists(), "told to trust it"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "has no Net; known: x"),
        ("raise ValueError('no')", r"cannot be run \(ValueError: no\)"),
        ("Net = 3", "must be a class or a function, not int"),
        ("def Net(): return 3", "must make a torch.nn.Module, not int"),
        ("def Net(size): pass", "cannot be made"),
        ("from torch import nn\nclass Net(nn.Module):\n  def __init__(self): raise KeyError(1)", "cannot be made"),
        (
            "from torch import nn\nclass Net(nn.Embedding):\n"
            "  def __init__(self, vocab_size): super().__init__(vocab_size, 3)",
            r"logits of shape \(2, 6, 3\) .* must be \(2, 6, 42\)",
        ),
        (
            "from torch import nn\nclass Net(nn.Embedding):\n"
            "  def __init__(self, vocab_size): super().__init__(vocab_size, vocab_size)\n"
            "  def forward(self, ids): x = super().forward(ids); return x + x.flip(1)",
            "depend on later tokens; a causal mask is missing",
        ),
    ],
)
def test_a_module_that_is_no_language_model_is_refused(own: Path, tmp_path: Path, code: str, message: str) -> None:
    from shoestring.models.language_model import build

    (tmp_path / "bad.py").write_text(code)
    with pytest.raises(UserError, match=message):
        build(
            ss.load(recipe_in(own), {"model.family": f"{tmp_path}/bad.py:Net", "model.options": None}).model, 42, 32, 0
        )


class Kernel(Started):
    """A kernel that need not load torch: as much of `subprocess.Popen` as its manager needs."""

    stdin = stdout = stderr = None

    def __init__(self, command: Sequence[str], *, cwd: str, env: Mapping[str, str], **_how: object):
        super().__init__(command[command.index("-f") :], Path(cwd), dict(env), serve)
        alone_in_its_group(self._process.pid)  # which the manager signals

    def wait(self) -> int | None:
        self.communicate(60)
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def serve() -> None:
    """What `python -m ipykernel_launcher` does."""
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


@pytest.mark.parametrize("name", ["first_run", "scaling_law"])
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client.provisioning import local_provisioner

    monkeypatch.setattr(local_provisioner, "launch_kernel", Kernel)
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "stored without outputs"
    if name == "scaling_law":
        monkeypatch.setenv(NO_FIGURES, "1")
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    said = "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", ()))
    if name == "first_run":
        assert "step 60/60" in said, "progress shows"
        assert "2 problems" in said
