"""Language-model research on a shoestring: measure the machine, plan what fits, run it to the deadline, learn the law.

    import shoestring as ss

    recipe = ss.load("recipe.toml", {"train.lr": 1e-3})
    run = ss.train(recipe)
    run.evaluation.loss, run.generate("Once upon a time")

Nothing is imported before it is used: `import shoestring` takes no time, and only training imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoestring.api import (
        Run,
        evaluate,
        fit_law,
        generate,
        load,
        measure,
        open_run,
        optimum,
        plan,
        prepare,
        train,
    )  # fmt: skip
    from shoestring.core.registry import registry

__version__ = "0.2.0.dev0"
__all__ = [
    "Run", "evaluate", "fit_law", "generate", "load", "measure", "open_run", "optimum", "plan", "prepare", "registry",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'shoestring' has no attribute {name!r}")
    if name == "registry":
        from shoestring.core.registry import registry

        return registry
    from shoestring import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
