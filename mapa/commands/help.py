"""What `--help` prints: options in panels, the usual ones first, within 80 columns."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}
PANELS = {  # the options of each panel, by parameter; all others stand under "Options"
    "Scenario": ("changes", "seed", "edges", "iterations", "links", "devices"),
    "Privacy": (
        *("epsilon", "noise_multiplier", "noise", "noise_parameter", "total_epsilon", "total_delta"),
        *("least_in_sums", "releases", "replace_budget"),
    ),
    "Broker": (
        *("broker", "run", "identity", "enrol", "accounts", "broker_username", "broker_password_file"),
        *("tls", "tls_ca", "tls_cert", "tls_key", "authentic", "plain_password", "connect_timeout"),
        *("link", "coding"),
    ),
    "Records of your own": ("edge_data", "data_name", "take_data", "forget_account", "new_schema"),
    "What a run may ask": ("allow", "code", "allow_seed", "allow_unprotected", "most_local_steps"),
    "Output": ("as_json", "metrics_port", "metrics_address", "quiet", "verbose", "debug", "help"),
}
_PANEL = {name: panel for panel, names in PANELS.items() for name in names}
_FURTHER = frozenset(  # of a command with many options, what only --help-all shows
    (
        *("tls", "tls_ca", "tls_cert", "tls_key", "authentic", "plain_password"),
        *("connect_timeout", "broker_username", "broker_password_file", "coding", "metrics_port"),
        *("metrics_address", "noise_parameter", "noise", "devices", "total_delta", "gather"),
        *("replace_budget", "data_name", "take_data", "forget_account", "new_schema", "allow"),
        *("allow_seed", "code", "most_local_steps", "verbose", "debug", "least_in_sums"),
        *("suspend",),
    )
)
_MANY = 25  # options of a command


class PanelledCommand(TyperCommand):
    """A command whose help has panels; `--help-all` shows every option, and its environment variable."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help-all" in args and not ctx.resilient_parsing:
            ctx.meta[__name__] = True
            print(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", "Options", *PANELS)}
        shown = [one for one in self.get_params(ctx) if not getattr(one, "hidden", False)]
        everything = ctx.meta.get(__name__, False)
        brief = not everything and len(shown) > _MANY
        one: Any
        for one in shown:
            if brief and one.name in _FURTHER and not one.required:
                continue
            one.show_envvar = everything
            panel = "Arguments" if one.param_type_name == "argument" else _PANEL.get(one.name, "Options")
            if (record := one.get_help_record(ctx)) is not None:
                panels[panel].append(record)
        for panel, rows in panels.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows, col_max=26)
        if left := len(shown) - sum(map(len, panels.values())):
            formatter.write_paragraph()
            formatter.write_text(f"{left} more options: {ctx.command_path} --help-all")


class SectionedGroup(TyperGroup):
    """A group of commands whose help has them in sections, each with the first line of its own help."""

    sections: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - typer makes the objects

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            print(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections = self.sections or {"Commands": tuple(self.list_commands(ctx))}
        width = max(map(len, self.list_commands(ctx)))
        for title, names in sections.items():
            commands = [(name.ljust(width), self.commands[name].help or "") for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, " ".join(text.split("\n\n")[0].split())) for name, text in commands]
                )
