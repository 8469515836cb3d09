"""Write the generated files of docs/: cli.md, configuration.md, mirror.schema.json, and the tables of from-mirrormaker.md.

Run it as ``make docs`` after changing a command, a help text or a setting. Unit tests compare the files with what this renders.
"""

from __future__ import annotations

import json
from pathlib import Path

from scripts import cli_page, config_page, mm2_table

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[str, str]:
    """The text of every generated file, by its name in docs/."""
    return {
        "cli.md": cli_page.render(),
        "configuration.md": config_page.render(),
        "from-mirrormaker.md": mm2_table.render(),
        "mirror.schema.json": json.dumps(config_page.json_schema(), indent=2) + "\n",
    }


def main() -> None:
    """Write the files and list those that changed."""
    for name, text in pages().items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"docs/{name} written")


if __name__ == "__main__":
    main()
