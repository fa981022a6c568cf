"""Three ways to update an HMM on the stories: held-out loss after each epoch, the mean over several starts.

    python bench/hmm_modes.py

"all" updates once an epoch, "every" after 256 rows from those alone, "online" after 256 rows from running statistics.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import record
import torch
from curves import loss_curves

from shoestring.core.recipe_file import load
from shoestring.data.store.sentence_store import prepare_rows
from shoestring.hmm.engine import engine
from shoestring.hmm.fit import Epoch, FitSettings, fit
from shoestring.hmm.inference import token_log_probs
from shoestring.hmm.parameters import Parameters
from shoestring.report.figures import svg

STATES, EPOCHS, SEEDS = 50, 20, (21, 22, 23, 24)


def heldout_losses(train: torch.Tensor, heldout: torch.Tensor, symbols: int, settings: FitSettings) -> list[float]:
    losses = []

    def note(_: Epoch, parameters: Parameters) -> None:
        losses.append(-float(token_log_probs(parameters, heldout).log_probabilities.double().mean()))

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fit(train, settings, symbols=symbols, device=device, on_epoch=note, count=engine(device))
    return losses


def main() -> None:
    recipe = load(record.ROOT / "recipes/icll/hmm.toml")
    assert recipe.hmm is not None
    rows = prepare_rows(recipe.data, recipe.run.seed, recipe.hmm)
    train, heldout = torch.from_numpy(rows.train), torch.from_numpy(rows.heldout.astype("int64"))
    found = {}
    for update in ("all", "every", "online"):
        settings = [FitSettings(states=STATES, epochs=EPOCHS, update=update, seed=seed) for seed in SEEDS]  # type: ignore[arg-type]
        runs = [heldout_losses(train, heldout, len(rows.alphabet), one) for one in settings]
        found[update] = {"mean": [statistics.mean(losses) for losses in zip(*runs, strict=True)], "runs": runs}
        print(update, [f"{found[update]['mean'][epoch]:.4f}" for epoch in (0, 1, 4, 9, 19)], flush=True)
    values = {
        "states": STATES,
        "rows": len(rows.train),
        "length": recipe.data.length,
        "seeds": list(SEEDS),
        "modes": found,
    }
    record.write("hmm_modes", values)
    curves = {name: mode["mean"] for name, mode in found.items()}
    figure = svg(loss_curves(curves, "epoch", "held-out loss"))
    Path(record.ROOT / "docs/images/hmm_modes.svg").write_text(figure + "\n")


if __name__ == "__main__":
    main()
