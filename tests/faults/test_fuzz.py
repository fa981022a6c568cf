"""A sample of `bench/fuzz.py`: no damage to a file of a run or a store is silent."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from fuzz import Damage, Fuzz
from small_home import make_home


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Fuzz:
    folder = tmp_path_factory.mktemp("fuzz")
    return Fuzz(make_home(folder / "home"), folder / "copy")


def test_no_damage_is_silent(fuzz: Fuzz) -> None:
    generator, found, silent = random.Random(0), Counter[str](), []
    for path in fuzz.files():
        for damage in fuzz.damages(path, generator, 2):
            for outcome in fuzz.outcomes(path, damage, most=1):
                found[outcome.found] += 1
                silent += [outcome] if outcome.found == "silent" else []
    assert not silent, "\n".join(map(str, silent))
    assert found["noticed"] > 50 and found["harmless"] > 0, found


@pytest.mark.parametrize("kind", ["flip", "cut", "swap"])
def test_damage_changes_a_file_and_only_where_it_says(kind: str) -> None:
    content = bytes(range(200))
    for where in range(200):
        broken = Damage(kind, where).of(content)
        assert broken != content
        assert len(broken) == (where if kind == "cut" else 200)
        if kind == "flip":
            assert [at for at in range(200) if broken[at] != content[at]] == [where]
        if kind == "swap":
            assert sorted(broken) == sorted(content)
