"""What a person sees in a terminal or a notebook."""
