"""Hidden Markov models over an alphabet of tokens: parameters, inference, fitting, sampling."""
