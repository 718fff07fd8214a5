"""`python3 database_password.py DIRECTORY`: make the database's password there, once, for compose.yaml.

Two files: `password`, which PostgreSQL's image reads as POSTGRES_PASSWORD_FILE under a user of its own, and `pgpass`,
which libpq reads as PGPASSFILE, mode 0600. The folder is a volume that only these services mount.
"""

import os
import secrets
import sys
from pathlib import Path

PASSWORD_BYTES = 32
DIRECTORY_MODE = 0o755  # the database has another user id than Laneway


def write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, mode)  # whatever the umask is
        file.write(text)
    beside.replace(path)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: database_password.py DIRECTORY\n")
        return 2
    directory = Path(arguments[0])
    directory.chmod(DIRECTORY_MODE)
    password, pgpass = directory / "password", directory / "pgpass"
    if not password.exists():
        write(password, secrets.token_hex(PASSWORD_BYTES), 0o444)
    write(pgpass, f"*:*:*:*:{password.read_text()}\n", 0o600)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
