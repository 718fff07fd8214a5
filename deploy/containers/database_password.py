"""`python3 database_password.py DIRECTORY [GRAFANA]`: make the database's passwords there, once, for compose.yaml.

In DIRECTORY: `password`, which PostgreSQL's image reads as POSTGRES_PASSWORD_FILE under a user of its own, and
`pgpass`, which libpq reads as PGPASSFILE, mode 0600. In GRAFANA: `grafana_password`, of the role that reads usage and
budgets. Each folder is a volume that only the services mount that need it.
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


def make_password(path: Path) -> str:
    """The password in the file; made if the file does not exist."""
    path.parent.chmod(DIRECTORY_MODE)
    if not path.exists():
        write(path, secrets.token_hex(PASSWORD_BYTES), 0o444)
    return path.read_text()


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: database_password.py DIRECTORY [GRAFANA]\n")
        return 2
    password = make_password(Path(arguments[0]) / "password")
    write(Path(arguments[0]) / "pgpass", f"*:*:*:*:{password}\n", 0o600)
    for directory in arguments[1:]:
        make_password(Path(directory) / "grafana_password")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
