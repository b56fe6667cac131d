"""pip install ARGUMENTS, by uv if it can: uv resolves in seconds what takes pip minutes. pip's own configuration of
indexes, links, constraints and certificates holds for uv too. Where uv fails, pip installs.

    python .ci/install.py --constraint constraints.txt --editable ".[dev]"
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

PIP = [sys.executable, "-m", "pip"]
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
}


def configured() -> dict[str, str]:
    """The keys of pip's configuration, from its files and from the environment, without their sections."""
    lines = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key.rpartition(".")[2]: str(ast.literal_eval(value)) for key, _, value in pairs}


def by_uv(arguments: list[str]) -> int:
    """The exit code of uv's installation of what pip's ``arguments`` name."""
    pip = configured()
    given = [(option, value) for key, option in OPTIONS.items() for value in pip.get(key, "").split()]
    options = [word for pair in given for word in pair]
    certificates = {"SSL_CERT_FILE": pip["cert"]} if "cert" in pip else {}
    # As pip does: of all indexes, the best version.
    words = ["uv", "pip", "install", "--python", sys.executable, "--index-strategy", "unsafe-best-match", *options]
    return subprocess.run([sys.executable, "-m", *words, *arguments], env={**os.environ, **certificates}).returncode


def main(arguments: list[str]) -> int:
    try:
        subprocess.run([*PIP, "install", "--quiet", "--constraint", "constraints.txt", "uv"], check=True)
        if by_uv(arguments) == 0:
            return 0
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"uv cannot be used: {error}", file=sys.stderr)
    print("pip installs in place of uv", file=sys.stderr)
    return subprocess.run([*PIP, "install", "--disable-pip-version-check", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
