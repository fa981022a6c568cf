"""Many runs of one recipe: which there are, what they take, how they are run, and what came of them."""
