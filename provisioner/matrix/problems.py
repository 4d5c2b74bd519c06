"""What can be wrong with a document a user wrote: one `Problem` each, many in one error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from provisioner.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_REPORTED = 20

PathPart: TypeAlias = "str | int"
DocumentPath: TypeAlias = "tuple[PathPart, ...]"


class Where(msgspec.Struct, frozen=True):
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: its kind, the path in the document, the sentence, the place."""

    kind: str
    message: str
    path: DocumentPath = ()
    where: Where | None = None

    def to_dict(self, prefix: str) -> dict[str, Any]:
        """The object that `--json` shows for it."""
        place = self.where
        return {
            "code": f"{prefix}.{self.kind}",
            "path": show_path(self.path),
            "message": self.message,
            "file": place.file if place else None,
            "line": place.line if place else None,
            "column": place.column if place else None,
        }


def show_path(path: DocumentPath) -> str:
    """The path as people read it: $.releases[3].torchvision.version."""
    shown = "$"
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif part and all(char.isalnum() or char in "_-" for char in part):
            shown += f".{part}"
        else:
            shown += f"[{part!r}]"
    return shown


class DocumentError(UsageError):
    """A document with one or more problems; its code is that of the first.

    `next_step` follows "Correct FILE".
    """

    def __init__(self, prefix: str, problems: Iterable[Problem], next_step: str) -> None:
        found = sorted(problems, key=_by_place)
        self.prefix = prefix
        self.problems = tuple(found[:MAX_REPORTED])
        self.total = len(found)
        first = self.problems[0]
        what = first.where.file if first.where else "the document"
        super().__init__(
            f"{prefix}.{first.kind}",
            _message(what, self.problems, self.total),
            next_step=f"Correct {what}{next_step}",
        )

    def to_dict(self) -> dict[str, Any]:
        """As for every error, with each problem as an object of its own."""
        return {
            **super().to_dict(),
            "problems": [problem.to_dict(self.prefix) for problem in self.problems],
            "problems_total": self.total,
        }


_YAML_KINDS = frozenset(
    {
        "alias",
        "control-character",
        "duplicate-key",
        "empty",
        "encoding",
        "key-type",
        "merge-key",
        "multiple-documents",
        "syntax",
        "tag",
        "too-deep",
        "too-large",
    }
)
"""What is wrong with the YAML itself comes first: the rest may be no more than its consequence."""


def _by_place(problem: Problem) -> tuple[bool, bool, str, int, int]:
    later = problem.kind not in _YAML_KINDS
    place = problem.where
    if place is None:
        return (later, True, "", 0, 0)
    return (later, False, place.file, place.line, place.column)


def _message(what: str, problems: tuple[Problem, ...], total: int) -> str:
    count = "one problem" if total == 1 else f"{total} problems"
    lines = [f"{what} has {count}."]
    for problem in problems:
        place = f"{problem.where}: " if problem.where else ""
        lines.append(f"  {place}{show_path(problem.path)}: {problem.message}")
    if total > len(problems):
        lines.append(f"  ... and {total - len(problems)} more")
    return "\n".join(lines)
