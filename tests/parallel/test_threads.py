"""How many threads torch's operations take."""

import pytest
import torch

from shoestring.parallel.threads import one_thread


@pytest.mark.parametrize(("wanted", "threads"), [(True, 1), (False, 2)])
def test_one_thread_for_a_while(wanted: bool, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread(wanted):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
