"""Networks: families behind one protocol, the layers they share, and the kernels of these."""
