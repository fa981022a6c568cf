"""Shapes in signatures, checked in every test once for the same function, shapes and objects.

A run calls the same functions with the same shapes in every step; to check them each time took a third of its time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import jaxtyping
import torch
from torch import Tensor

_checked: set[tuple[object, ...]] = set()
_always = jaxtyping.jaxtyped


def check(modules: list[str]) -> None:
    """Have these modules checked, which are not imported yet."""
    jaxtyping.jaxtyped = _jaxtyped  # type: ignore[assignment]
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def check_again() -> None:
    """Forget what was checked."""
    _checked.clear()


def _jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """In place of jaxtyping's own decorator, which the hook puts before each function and class."""

    def decorate(made: Any) -> Any:
        return _once(made, typechecker) if inspect.isfunction(made) else _always(made, typechecker=typechecker)

    return decorate


def _once(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    code, checking = id(function.__code__), None  # of its code: one within another is made in each call of that

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        nonlocal checking
        if torch.compiler.is_compiling():
            return function(*args, **named)
        key = (code, *map(_kind, args), *named, *map(_kind, named.values()))
        if key in _checked:
            return function(*args, **named)
        checking = checking or _always(function, typechecker=typechecker)
        found = checking(*args, **named)
        _checked.add(key)
        return found

    return call


def _kind(value: Any) -> object:
    """What a check may depend on."""
    kind = type(value)
    tell = _TELL.get(kind)
    if tell is None:
        tell = _TELL[kind] = _tell(kind)
    return tell(value)


_TELL: dict[type, Callable[[Any], object]] = {}
"""Found once for each type: this is asked in every call."""


def _tell(kind: type) -> Callable[[Any], object]:
    if issubclass(kind, Tensor):
        return lambda value: (value.shape, value.dtype)
    if kind is float:
        return lambda _: kind  # no shape is named by one
    if kind is type(None) or issubclass(kind, bool | int | float | str | torch.device):
        return lambda value: (kind, value)
    if issubclass(kind, tuple | list):
        return lambda value: (kind, *map(_kind, value))
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return lambda value: (kind, *(_kind(getattr(value, name, None)) for name in names))
    return lambda value: (id(value), getattr(value, "training", None))  # of a module
