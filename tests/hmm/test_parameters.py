"""Parameters: what is drawn is valid, what is wrong is named, what is written is read back."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from shoestring.core.errors import StorageError, UserError
from shoestring.hmm.parameters import HmmError, Parameters, check, is_symmetric, load, random_parameters, save
from shoestring.storage.tensor_file import write_tensors

WORDS = ["the", "cat", "sat", "–"]


def uniform(states: int = 2, symbols: int = 4) -> Parameters:
    tables = (
        torch.full(shape, 1 / shape[-1], dtype=torch.float64)
        for shape in ((states,), (states, states), (states, symbols))
    )
    return Parameters(*tables)


@pytest.mark.parametrize("concentration", [0.01, 0.3, 1.0, 50.0])
@pytest.mark.parametrize("end", [False, True])
def test_random_parameters_are_valid_in_both_types(concentration: float, end: bool) -> None:
    model = random_parameters(7, 11, seed=3, concentration=concentration, end=end)
    check(model)
    check(model.to(dtype=torch.float32))
    assert not is_symmetric(model)
    assert (model.states, model.symbols, model.dtype) == (7, 11, torch.float64)
    assert (model.end is not None) == end


def test_random_parameters_follow_the_seed_alone() -> None:
    torch.manual_seed(5)
    one = random_parameters(4, 6, seed=1)
    torch.manual_seed(6)
    again, other = random_parameters(4, 6, seed=1), random_parameters(4, 6, seed=2)
    for a, b, c in zip(one[:3], again[:3], other[:3]):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    with_end = random_parameters(4, 6, seed=1, end=True)
    assert torch.equal(one.emission, with_end.emission)


def test_a_concentration_of_one_has_the_moments_of_a_flat_dirichlet() -> None:
    table = random_parameters(1_000, 5, seed=0).emission
    assert table.mean(0).tolist() == pytest.approx([0.2] * 5, abs=0.02)
    assert table.var(0).tolist() == pytest.approx([0.2 * 0.8 / 6] * 5, rel=0.2)


@pytest.mark.parametrize(
    ("states", "symbols", "concentration"), [(0, 3, 1.0), (3, 0, 1.0), (3, 3, 0.0), (3, 3, float("nan"))]
)
def test_impossible_sizes_are_refused(states: int, symbols: int, concentration: float) -> None:
    with pytest.raises(HmmError):
        random_parameters(states, symbols, 0, concentration)


def put(table: torch.Tensor, place: tuple[int, ...], value: float) -> torch.Tensor:
    table = table.clone()
    table[place] = value
    return table


def test_wrong_tables_are_refused_by_name_and_place() -> None:
    good = uniform()
    check(good)
    wrong = {
        r"start must have shape \(2,\)": good._replace(start=torch.ones(3).double() / 3),
        r"transition must have shape \(2, 2\)": good._replace(transition=torch.full((2, 3), 1 / 3).double()),
        r"end must have shape \(2,\)": good._replace(end=torch.zeros(3).double()),
        r"emission must be states × symbols": good._replace(emission=torch.ones(4).double() / 4),
        r"emission\[1, 2\] = nan is not finite": good._replace(emission=put(good.emission, (1, 2), float("nan"))),
        r"transition\[0, 1\] = inf is not finite": good._replace(transition=put(good.transition, (0, 1), float("inf"))),
        r"emission\[0, 3\] = -0.25 is negative": good._replace(emission=put(good.emission, (0, 3), -0.25)),
        r"emission\[1\] sums to 1.00001": good._replace(emission=put(good.emission, (1, 0), 0.25001)),
        r"start sums to 0.9": good._replace(start=put(good.start, (0,), 0.4)),
        r"end\[1\] = 1.5 is above 1": good._replace(end=torch.tensor([0.0, 1.5]).double()),
        r"start must be float32 or float64": good.to(dtype=torch.bfloat16),
        r"start is torch.float32": good._replace(start=good.start.float()),
    }  # fmt: skip
    for message, model in wrong.items():
        with pytest.raises(UserError, match=message):
            check(model)


def test_symmetry_is_seen() -> None:
    assert is_symmetric(uniform())
    one_row = random_parameters(1, 4, 0)
    model = random_parameters(3, 4, 0)
    assert not is_symmetric(one_row)
    assert not is_symmetric(model)
    assert is_symmetric(model._replace(emission=one_row.emission.expand(3, 4)))
    twins = model.emission.clone()
    twins[1] = twins[0]
    assert not is_symmetric(model._replace(emission=twins))


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_is_read_back_exactly(tmp_path: Path, end: bool, dtype: torch.dtype) -> None:
    model = random_parameters(3, 4, 0, end=end).to(dtype=dtype)
    path = tmp_path / "deep" / "model.safetensors"
    save(path, model, WORDS, {"epoch": 3, "loss": None})
    found = load(path, WORDS)
    assert found.alphabet == tuple(WORDS)
    assert found.extra == {"epoch": 3, "loss": None}
    for a, b in zip(model, found.parameters):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a.double(), b)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name, random_parameters(3, 4, 0), WORDS, {"x": 1, "y": [2]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_model_needs_no_words(tmp_path: Path) -> None:
    save(tmp_path / "m", random_parameters(3, 4, 0))
    assert load(tmp_path / "m").alphabet is None
    with pytest.raises(HmmError, match="names no words, 4 were expected"):
        load(tmp_path / "m", WORDS)


def test_another_alphabet_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "m", random_parameters(3, 4, 0), WORDS)
    with pytest.raises(HmmError, match='symbol 1 is "cat", "dog" was expected'):
        load(tmp_path / "m", ["the", "dog", "sat", "–"])
    with pytest.raises(HmmError, match="it has 4 symbols, 3 were expected"):
        load(tmp_path / "m", WORDS[:3])
    with pytest.raises(HmmError, match="3 words for a model of 4 symbols"):
        save(tmp_path / "m", random_parameters(3, 4, 0), WORDS[:3])


def test_a_wrong_model_overwrites_nothing(tmp_path: Path) -> None:
    save(tmp_path / "m", random_parameters(3, 4, 0), WORDS)
    before = (tmp_path / "m").read_bytes()
    model = random_parameters(3, 4, 1)
    with pytest.raises(HmmError):
        save(tmp_path / "m", model._replace(start=model.start * 2), WORDS)
    assert (tmp_path / "m").read_bytes() == before


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save(path, random_parameters(2, 2, 0, end=True), ["a", "b"], {"note": "kept"})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = load(path)
        except UserError:
            continue
        # what is left: a blank in the header's padding turned into another that means nothing
        assert found.extra == {"note": "kept"} and found.alphabet == ("a", "b"), place
        assert torch.equal(found.parameters.emission, random_parameters(2, 2, 0).emission), place
    for size in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match="damaged"):
            load(path)


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        load(tmp_path / "absent")
    (tmp_path / "text").write_text(json.dumps({"schema": "shoestring.hmm/1"}))
    with pytest.raises(StorageError, match="text: damaged, or not a file of tensors"):
        load(tmp_path / "text")
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(StorageError, match="other: not written by this version of shoestring"):
        load(tmp_path / "other")
    write_tensors(tmp_path / "else", {"weight": np.zeros(2)}, json.dumps({"schema": "shoestring.hmm/1"}))
    with pytest.raises(StorageError, match="else: not a hidden Markov model"):
        load(tmp_path / "else")
