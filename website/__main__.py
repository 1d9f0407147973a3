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
    command = [Path(sys.executable).parent / "zensical", "build", "--strict", "--clean", "--config-file", config]
    sys.exit(subprocess.run(command, cwd=BUILD, check=False).returncode)


if __name__ == "__main__":
    main()
