"""Other people's libraries: each in a module of its own, imported by whoever has the library."""
