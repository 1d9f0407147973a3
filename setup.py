"""Build settings that pyproject.toml cannot hold: the description from README.md, and links to the repository."""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def description(text: str, repository: str) -> str:
    """Return README.md as a package index can show it: without marks, and without relative links or pictures.

    repository: the address of the repository. Links lead there; if it is empty, links become plain text. Pictures of
    the repository are left out.
    """
    text = re.sub(r"<!-- .*? -->", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    target = rf"[\1]({repository.rstrip('/')}/blob/main/\2)" if repository else r"\1"
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", target, text)


def links(repository: str) -> dict[str, str]:
    """Return the links of the package: none while the repository has no address."""
    if not repository:
        return {}
    base = repository.rstrip("/")
    return {"Repository": base, "Issues": f"{base}/issues", "Changelog": f"{base}/blob/main/CHANGELOG.md"}


if __name__ == "__main__":
    from setuptools import setup

    address = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["polymax"]["repository"]
    setup(
        long_description=description((HERE / "README.md").read_text(encoding="utf-8"), address),
        long_description_content_type="text/markdown",
        project_urls=links(address),
    )
