"""To look at before training: the tasks there are, a reward function, a data set."""
