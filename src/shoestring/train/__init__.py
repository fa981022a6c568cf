"""The loop and what belongs to it: learner, course, pace, checkpoints, hooks."""
