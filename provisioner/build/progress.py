"""Reads the plain progress of a BuildKit build: which step runs, what it said, which one failed."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

_LINE = re.compile(r"#(\d+) (.*)")
_STEP = re.compile(r"\[(?:(\S+) +)?(\d+/\d+)\] (.*)")
_OUTPUT = re.compile(r"\d+\.\d+ ?(.*)")
_KEPT = 400


@dataclass
class Step:
    """One step. `stage` is empty for steps of the builder itself; `said` keeps its last lines."""

    stage: str = ""
    place: str = ""
    title: str = ""
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    error: str | None = None


class Progress:
    """The state of one build. Feed it lines; `failed` is the step that ended it, or None."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.failed: Step | None = None
        self.rest: deque[str] = deque(maxlen=_KEPT)

    def feed(self, line: str) -> str | None:
        """Takes one line; returns a short text when a step starts, ends or fails."""
        found = _LINE.match(line)
        if found is None:
            self.rest.append(line)
            return None
        number, text = found.groups()
        step = self.steps.get(number)
        if step is None:
            return self._start(number, text)
        if text.startswith("ERROR"):
            step.error = text.partition(":")[2].strip()
            self.failed = self.failed or step
            return f"{step.stage} {step.place} failed" if step.stage else None
        if text.startswith("DONE ") and step.stage:
            return f"{step.stage} {step.place} done in {text.removeprefix('DONE ')}"
        if text == "CACHED" and step.stage:
            return f"{step.stage} {step.place} cached"
        output = _OUTPUT.fullmatch(text)
        if output:
            step.said.append(output[1])
        return None

    def _start(self, number: str, text: str) -> str | None:
        named = _STEP.match(text)
        step = Step(title=text)
        if named:
            step = Step(stage=named[1] or "", place=named[2], title=named[3])
        self.steps[number] = step
        return f"{step.stage} {step.place} {short_title(step.title)}" if step.stage else None


def short_title(title: str) -> str:
    """An instruction without its mounts and its tail, at most 60 characters."""
    plain = re.sub(r"--mount=\S+ *", "", title)
    plain = " ".join(plain.split())
    return plain if len(plain) <= 60 else plain[:57] + "..."
