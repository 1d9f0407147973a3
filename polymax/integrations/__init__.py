"""Integrations of other libraries, each in a module of its own; import it if the library is installed."""
