"""Writes the tables of docs/users/fields-*.md from the wire types, and the console's file that is built from them and
from the snippets of docs/users/clients.md, responses.md and agents.md. Run it after a change of a wire type or a
snippet:

    python tests/programs/write_clients_page.py
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

from support.clients_page import CONSOLE_FILE, console_file, table_pages

if __name__ == "__main__":
    for path, text in table_pages().items():
        path.write_text(text)
    CONSOLE_FILE.write_text(console_file())
