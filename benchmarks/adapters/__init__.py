"""One module per competitor. Each gives ladders: ways to solve a problem, from loose to tight tolerances."""
