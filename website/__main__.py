"""Build the site into build/website: `make docs`."""

import subprocess
import sys
from pathlib import Path

from website import reference
from website.stage import ROOT, stage

BUILD = ROOT / "build"
# Zensical reads a file; what changes is the list of reference pages alone
TEMPLATE = Path(__file__).parent / "zensical.toml"


def main() -> None:
    """Stage all pages, then build them; a warning is an error."""
    BUILD.mkdir(exist_ok=True)
    stage(BUILD / "website-source")
    pages = ", ".join(f'{{ "{group.title.split(":")[0]}" = "reference/{group.page}" }}' for group in reference.groups())
    config = BUILD / "zensical.toml"
    config.write_text(TEMPLATE.read_text(encoding="utf-8").replace("@REFERENCE@", pages), encoding="utf-8")
    zensical = str(Path(sys.executable).parent / "zensical")
    command = [zensical, "build", "--strict", "--clean", "--config-file", str(config)]
    if code := subprocess.run(command, cwd=BUILD, check=False).returncode:
        sys.exit(code)
    # pages that are opened as files find the index of the search in a script
    index = (BUILD / "website" / "search.json").read_text(encoding="utf-8")
    (BUILD / "website" / "search.js").write_text(f"var __index = {index};\n", encoding="utf-8")


if __name__ == "__main__":
    main()
