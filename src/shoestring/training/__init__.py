"""The loop and what belongs to it: learner, schedule, deadline, checkpoints, hooks."""
