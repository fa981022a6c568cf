"""From documents to rows of tokens: sources, tokenizers, the store on disk, and the order in which rows are read."""
