"""The texts of a project's provision.yaml, by what they may hold."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

ProjectName = Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)]
CondaSpec = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9_][a-z0-9._-]*((==|!=|>=|<=|~=|=|<|>)[0-9][0-9A-Za-z.*]*"
        r"(,(==|!=|>=|<=|~=|=|<|>)[0-9][0-9A-Za-z.*]*)*)?$"
    ),
]
AptSpec = Annotated[
    str,
    Meta(
        # apt takes a last - for "remove", and a name that it does not know for a pattern.
        pattern=r"^(?![^=]*\.\+)[a-z0-9][a-z0-9+.-]*[a-z0-9+](=[0-9A-Za-z][0-9A-Za-z.+~:-]*)?$",
        max_length=120,
    ),
]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9<>=!~][A-Za-z0-9.+<>=!~,*_ -]*$", max_length=80)]
