"""The hub of models and data sets: whether it has an address here."""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit
from urllib.request import getproxies

OFFLINE, ENDPOINT = "HF_HUB_OFFLINE", "HF_ENDPOINT"
_READ_BY = ("huggingface_hub.constants", "datasets.config")
"""Modules that read it once, when they are imported."""


def spare_the_wait() -> None:
    """Without an address of the hub, as on many nodes of a cluster, let its client read its cache alone: for each name
    it would try again for half a minute."""
    if OFFLINE in os.environ or getproxies():  # a proxy knows addresses that are unknown here
        return
    host = urlsplit(os.environ.get(ENDPOINT, "https://huggingface.co")).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        os.environ[OFFLINE] = "1"
        for name in _READ_BY:
            if name in sys.modules:
                setattr(sys.modules[name], OFFLINE, True)
