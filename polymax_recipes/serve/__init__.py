"""Predictions of a trained model over HTTP: what `polymax serve RUN` runs."""
