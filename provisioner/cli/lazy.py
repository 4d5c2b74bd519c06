"""A click group that imports a command only when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class NoCommandError(click.UsageError):
    """A group was called without a command; `help` is what it could do."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__("A command is missing.", ctx)
        self.help = ctx.get_help()


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; without any argument the help is the answer, with status 2."""
        if not args and not ctx.resilient_parsing:
            raise NoCommandError(ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order in which people use them."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of a name, imported now; None when there is none."""
        if cmd_name not in self.lazy:
            return None
        import importlib

        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the nearest name when there is none."""
        if args and not args[0].startswith("-") and args[0] not in self.lazy:
            import difflib

            close = difflib.get_close_matches(args[0], self.lazy, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(self.lazy)}."
            ctx.fail(f"No such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands with their lines, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[1]) for name, entry in self.lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names for the shell, from the table alone."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=entry[1])
            for name, entry in self.lazy.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
