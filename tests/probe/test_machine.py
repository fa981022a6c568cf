"""What is known and set of the machine."""

import pytest
import torch

from shoestring.probe.machine import few_threads


@pytest.mark.parametrize(("device", "threads"), [("cuda", 1), ("cpu", 2)])
def test_the_host_of_a_gpu_computes_with_one_thread(device: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with few_threads(torch.device(device)):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
