"""Length generalisation: models that learn problems on short sequences and are tested on longer ones."""
