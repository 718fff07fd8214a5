"""Writes the tables of fields in docs/clients.md anew from the wire types, and then the console's file that is built
from that page. Run it after a change of either:

    python tests/programs/write_clients_page.py
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

from support.clients_page import CONSOLE_FILE, PAGE, console_file, page

if __name__ == "__main__":
    PAGE.write_text(page())
    CONSOLE_FILE.write_text(console_file())
