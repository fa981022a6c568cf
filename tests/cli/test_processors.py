"""How threads wait is settled before torch is loaded, and a user's own choice is kept."""

import os

import pytest

from shoestring.cli import main


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}])
def test_waiting_threads_sleep_soon_unless_the_user_decided(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    main._share_processors()
    found = {name: os.environ[name] for name in names if name in os.environ}
    assert found == (given or {"GOMP_SPINCOUNT": main._SPINS})
