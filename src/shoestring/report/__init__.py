"""Pages and figures, made from records alone: no torch, no network."""
