"""Shapes in signatures, checked in every test once for the same function, shapes and objects.

A run calls the same functions with the same shapes in every step; to check them each time took a third of its time.
Two modules are the same here if they and all inside them have the same types, plain attributes and parameter shapes.
"""

from __future__ import annotations

import functools
import inspect
import re
import weakref
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, get_args

import jaxtyping
import torch
from torch import Tensor, nn

_checked: set[tuple[object, ...]] = set()
_shaped: dict[CodeType, bool] = {}
_always = jaxtyping.jaxtyped
PLAIN = (type(None), bool, int, float, str, torch.device)


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
    code, checking, tell = function.__code__, None, None
    number = id(code)  # of its code: a function within another is made in each call of that

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        nonlocal checking, tell
        if torch.compiler.is_compiling():
            return function(*args, **named)
        if tell is None:  # not before a call: what annotations name may be defined later
            if code not in _shaped:
                _shaped[code] = _has_shapes(function)
            tell = _kind if _shaped[code] else _sort
        key = (number, *map(tell, args), *named, *map(tell, named.values()))
        if key in _checked:
            return function(*args, **named)
        checking = checking or _always(function, typechecker=typechecker)
        found = checking(*args, **named)
        _checked.add(key)
        return found

    return call


def _has_shapes(function: Callable[..., Any]) -> bool:
    """Whether a name in its annotations, which are texts, is a shape or made of shapes, or is not known here."""
    names = re.findall(r"[A-Za-z_]\w*", " ".join(map(str, inspect.get_annotations(function).values())))
    return any(_is_shape(function.__globals__.get(name)) for name in names)


def _is_shape(kind: object) -> bool:
    if isinstance(kind, list):
        return any(map(_is_shape, kind))
    return getattr(kind, "__module__", "").startswith("jaxtyping") or any(map(_is_shape, get_args(kind)))


def _kind(value: Any) -> object:
    """What a check of shapes may depend on."""
    kind = type(value)
    tell = _KINDS.get(kind)
    if tell is None:
        tell = _KINDS[kind] = _kinds_of(kind)
    return tell(value)


def _sort(value: Any) -> object:
    """What a check of types may depend on, where there are no shapes."""
    kind = type(value)
    tell = _SORTS.get(kind)
    if tell is None:
        by_type = (Tensor, nn.Module, bool, int, float, torch.device, torch.dtype, Path, FunctionType, MethodType)
        whole = issubclass(kind, by_type) or is_dataclass(kind)
        tell = _SORTS[kind] = (lambda _: kind) if whole else _kinds_of(kind)
    return tell(value)


_KINDS: dict[type, Callable[[Any], object]] = {}
_SORTS: dict[type, Callable[[Any], object]] = {}
"""Found once for each type: they are asked in every call."""


def _kinds_of(kind: type) -> Callable[[Any], object]:
    if issubclass(kind, Tensor):
        return lambda value: (value.shape, value.dtype)
    if kind is float:
        return lambda _: kind  # no shape is named by one
    if issubclass(kind, PLAIN):
        return lambda value: (kind, value)
    if issubclass(kind, tuple | list):
        return lambda value: (kind, *map(_kind, value))
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return lambda value: (kind, *(_kind(getattr(value, name, None)) for name in names))
    if kind is MethodType:
        return lambda value: (id(value.__func__), _kind(value.__self__))
    return _module if issubclass(kind, nn.Module) else id


_MODULES: dict[int, tuple[weakref.ref[nn.Module], int, int]] = {}
_CONFIGURATIONS: dict[object, int] = {}


def _module(module: nn.Module) -> object:
    """The number of its configuration, and whether it is trained; of one that is being made, which it is."""
    inside = vars(module).get("_modules")
    if inside is None:
        return id(module)
    known, size = _MODULES.get(id(module)), len(vars(module)) + len(inside)
    if known is None or known[0]() is not module or known[1] != size:
        told = tuple((type(each), *_attributes(each)) for each in module.modules())
        number = _CONFIGURATIONS.setdefault(told, len(_CONFIGURATIONS))
        known = _MODULES[id(module)] = weakref.ref(module), size, number
    return known[2], module.training


def _attributes(module: nn.Module) -> list[tuple[object, ...]]:
    plain = [(name, value) for name, value in vars(module).items() if isinstance(value, PLAIN) and name != "training"]
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return [*plain, *((name, value.shape) for name, value in tensors)]
