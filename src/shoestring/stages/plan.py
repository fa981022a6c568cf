"""Plan: from the recipe and its profile to plan.json. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from shoestring.core.errors import PlanError
from shoestring.core.facts import Plan, Profile
from shoestring.core.files import free_bytes
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.data.labels import count_labelled
from shoestring.data.packed import PackedSource
from shoestring.data.prepare import estimate_bytes
from shoestring.data.sentence_store import prepare_rows
from shoestring.plan.hmm import plan_hmm
from shoestring.plan.make import Ready, make_plan
from shoestring.stages.prepare import given_store


def plan_recipe(recipe: Recipe, profile: Profile, spent: float = 0.0, devices: int = 1) -> Plan:
    """The plan, with `spent` seconds of the time budget gone already; an HMM's needs its rows, and makes them."""
    if recipe.hmm is not None:
        rows = prepare_rows(recipe.data, recipe.run.seed, recipe.hmm)
        return plan_hmm(recipe, profile, len(rows.train), spent)

    def store_bytes(tokens: float, documents: float) -> int:
        return estimate_bytes(tokens, documents, recipe.data)

    free = free_bytes(Path(recipe.run.folder))
    return make_plan(recipe, profile, store_bytes, spent, free, ready_rows(recipe), devices)


def ready_rows(recipe: Recipe) -> Ready | None:
    """Rows that need no preparing."""
    if recipe.data.stream is not None:
        return Ready(None, 0, "computed as they are read; nothing is prepared")
    if recipe.data.label is not None:
        assert recipe.model.classes is not None, "checked when the recipe was read"
        rows, _ = count_labelled(recipe.data, recipe.run.seed, recipe.model.classes)
        return Ready(rows, 0, "for training, one a document, read into memory; nothing is prepared")
    store = given_store(recipe)
    if store is None:
        return None
    data = recipe.data
    if data.packing == "concat":
        rows = len(store.split("train", data.length))
    else:
        rows = len(PackedSource(store, "train", data.length, data.packing))
    return Ready(rows, store.manifest.bytes, f"for training, in {store.paths.folder}")


def read_profile(recipe: Recipe, folder: RunFolder, file: Path | None = None) -> Profile:
    """A profile that was measured before: the run folder's own, or the one in `file`."""
    path = file or folder.profile
    if not path.is_file():
        raise PlanError(
            f"there is no profile {path}; measure this machine first: shoestring measure RECIPE, "
            f"or give figures by hand: --time, --tokens-per-second, …"
        )
    profile = Profile.read(path)
    if profile.workload != recipe.workload:
        raise PlanError(f"{path} was measured with another model, row length or batch; run: shoestring measure RECIPE")
    return profile


def read_plan(recipe: Recipe, path: Path) -> Plan:
    """A plan that was made before, checked to be this recipe's."""
    plan = Plan.read(path)
    if plan.recipe != recipe.fingerprint:
        raise PlanError(f"{path} is the plan of another recipe; make it again with: shoestring plan RECIPE")
    return plan
