"""Hidden Markov models over an alphabet of tokens: parameters, inference, expectation and maximisation, sampling."""
