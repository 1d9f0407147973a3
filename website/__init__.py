"""The documentation site: `python -m website` stages Markdown, pictures and the reference, and Zensical builds them."""
