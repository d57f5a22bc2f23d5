"""The code of docs/integrations.md, to be run as it stands."""

from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "integrations.md"


def code_of(section):
    """The Python code under a heading."""
    (text,) = [part for part in PAGE.read_text().split("\n## ") if part.startswith(f"{section}\n")]
    (code,) = [block.removeprefix("python\n") for block in text.split("```")[1::2] if block.startswith("python\n")]
    return code
