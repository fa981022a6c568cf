"""Whether the hub's client is spared its attempts."""

from __future__ import annotations

import os
import socket

import pytest
from huggingface_hub import constants

from shoestring.core import hub


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub.OFFLINE, "")  # so that what the test sets is taken back
    monkeypatch.delenv(hub.OFFLINE)
    monkeypatch.setattr(constants, hub.OFFLINE, False)
    monkeypatch.setattr(hub, "getproxies", dict)


def asked(monkeypatch: pytest.MonkeyPatch, known: bool) -> list[object]:
    """The addresses that are looked up."""
    found: list[object] = []

    def look_up(host: object, port: int) -> list[object]:
        found.append(host)
        if not known:
            raise socket.gaierror("Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


def test_a_hub_without_an_address_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = asked(monkeypatch, known=False)
    hub.spare_the_wait()
    assert hosts == ["huggingface.co"]
    assert os.environ[hub.OFFLINE] == "1"
    assert constants.is_offline_mode(), "a client that is imported already"
    hub.spare_the_wait()
    assert len(hosts) == 1, "looked up once"


def test_a_hub_with_an_address_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub.ENDPOINT, "https://mirror.example:8443/hub")
    hosts = asked(monkeypatch, known=True)
    hub.spare_the_wait()
    assert hosts == ["mirror.example"]
    assert hub.OFFLINE not in os.environ and not constants.is_offline_mode()


def test_a_proxy_may_know_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy.example:3128"})
    hosts = asked(monkeypatch, known=False)
    hub.spare_the_wait()
    assert not hosts and hub.OFFLINE not in os.environ


@pytest.mark.parametrize("value", ["0", "1"])
def test_who_has_chosen_is_obeyed(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(hub.OFFLINE, value)
    hosts = asked(monkeypatch, known=False)
    hub.spare_the_wait()
    assert not hosts and os.environ[hub.OFFLINE] == value
