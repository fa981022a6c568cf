"""What a network costs before it is built: parameters, FLOPs, memory and seconds, by arithmetic alone."""
