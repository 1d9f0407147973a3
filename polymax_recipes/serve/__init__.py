"""Predictions of a trained model over HTTP: the server of `polymax serve RUN`."""
