"""Row i as a batch: of a store, a stream, or documents with a class."""
