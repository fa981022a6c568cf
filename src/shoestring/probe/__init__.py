"""Finding out what a machine does with a workload: bytes and seconds as functions of the batch, in a child process."""
