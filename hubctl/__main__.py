"""The program hubctl. It imports the module of a command only when the command is called, and prints failures to stderr."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hubctl.errors import DONE, FAILED, INTERRUPTED, CommandError, UsageError, closest
from hubctl.options import IMPERSONATION, with_options
from machinery.product import version
from machinery.runtime.closed_pipe import ignore_closed_pipe

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "get": ("hubctl.commands.objects.get:get", "List clusters, csr, addons, the fleet or other objects."),
    "wait": ("hubctl.commands.objects.wait:wait", "Wait until clusters or other objects reach a condition."),
    "describe": ("hubctl.commands.objects.describe:describe", "Show the details of a cluster or another object."),
    "diagnose": ("hubctl.commands.clusters.diagnose:diagnose", "Explain why a cluster is not Available, and how to fix it."),
    "history": ("hubctl.commands.objects.history:history", "Show the changes of a cluster, with time and author."),
    "diff": ("hubctl.commands.objects.history:diff", "Show the differences between two points in time."),
    "join": ("hubctl.commands.clusters.join:join", "Print or apply the manifests with which a cluster joins."),
    "accept": ("hubctl.commands.access.acceptance:accept", "Accept clusters, and approve their certificate requests."),
    "deny": ("hubctl.commands.access.acceptance:deny", "Deny clusters: the hub keeps them and rejects their reports."),
    "revoke": (
        "hubctl.commands.access.revocation:revoke",
        "Revoke a cluster, an agent, a serial or a bootstrap credential immediately.",
    ),
    "move": ("hubctl.commands.clusters.actions:move", "Move clusters to another hub of their hub list."),
    "drain": ("hubctl.commands.clusters.replicas:drain", "Move a replica's sessions to other replicas."),
    "uncordon": ("hubctl.commands.clusters.replicas:uncordon", "Allow a drained replica to accept sessions again."),
    "label": ("hubctl.commands.objects.label:label", "Set or remove labels."),
    "annotate": ("hubctl.commands.objects.label:annotate", "Set or remove annotations."),
    "taint": ("hubctl.commands.objects.label:taint", "Add taints to clusters, or remove them."),
    "apply": ("hubctl.commands.objects.apply:apply", "Create or change objects from manifests (server-side apply)."),
    "import": ("hubctl.commands.clusters.ocm:import_inventory", "Create the inventory of an OCM hub on this hub."),
    "export": ("hubctl.commands.clusters.ocm:export", "Write the inventory as manifests for an OCM hub."),
    "ca": ("hubctl.commands.access.ca:ca", "Rotate the hub's CA and show the progress."),
    "rotate": ("hubctl.commands.clusters.actions:rotate", "Make agents renew their certificates early."),
    "certificate": ("hubctl.commands.access.approval:certificate", "Approve or deny certificate requests."),
    "create": ("hubctl.commands.clusters.create:create", "Create a bootstrap kubeconfig with which clusters join."),
    "delete": ("hubctl.commands.objects.delete:delete", "Delete clusters (their certificates are revoked) and other objects."),
    "addon": ("hubctl.commands.clusters.addon:addon", "Enable or disable add-ons on clusters."),
    "top": ("hubctl.commands.objects.top:top", "Show resources of clusters and the state of the hub's replicas."),
    "events": ("hubctl.commands.objects.events:events", "Show Events."),
    "release-brake": (
        "hubctl.commands.clusters.actions:release_brake",
        "Release the brake: taint and remove silent clusters again.",
    ),
    "audit": ("hubctl.commands.objects.events:audit", "Show the hub's audit records."),
    "config": ("hubctl.commands.access.config:config", "Show and change the contexts of the kubeconfig."),
    "login": ("hubctl.commands.access.login:login", "Log in with an external token, and write a kubeconfig."),
    "logout": ("hubctl.commands.access.login:logout", "Delete the stored credentials of a login."),
    "whoami": ("hubctl.commands.objects.info:whoami", "Show the user and groups that the hub authenticates."),
    "credential": ("hubctl.commands.access.login:credential", "Credential plug-in for kubectl (exec)."),
    "api-resources": ("hubctl.commands.objects.info:api_resources", "Show the API resources of the hub."),
    "log-level": ("hubctl.commands.objects.info:log_level", "Show or change the hub's log level."),
    "completion": ("hubctl.commands.objects.info:completion", "Print the completion script for a shell."),
    "console": ("hubctl.commands.access.console:console", "Open the hub's console in a browser."),
    "version": ("hubctl.commands.objects.info:version", "Show the versions of hubctl and of the hub."),
}

SYNONYMS = {
    "approve": "`hubctl certificate approve`",
    "clusters": "`hubctl get clusters`",
    "contexts": "`hubctl config get-contexts`",
    "use-context": "`hubctl config use-context`",
    "list": "`hubctl get`",
    "ls": "`hubctl get`",
    "show": "`hubctl describe` or `hubctl get`",
    "remove": "`hubctl delete`",
    "rm": "`hubctl delete`",
}
"""hubctl's command for each command name that users know from other programs."""


class LazyGroup(click.Group):
    """Contains the name and one line of help of each command. Imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command. The error suggests similar names, including transposed letters, which click does not find."""
        name = args[0]
        if not ctx.resilient_parsing and name not in COMMANDS and not name.startswith("-"):
            hint = f": use {SYNONYMS[name]}" if name in SYNONYMS else closest(name, COMMANDS)
            ctx.fail(f'there is no command "{name}"{hint or ": `hubctl --help` lists them"}')
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's callback
    if wanted:
        click.echo(f"hubctl, version {version()}")
        context.exit()


def _complete_context(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    from hubctl.auth.kubeconfig import context_names  # noqa: PLC0415 - only completion needs it

    return context_names(context, parameter, incomplete)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="See `hubctl COMMAND --help` for examples.",
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="The kubeconfig of the hub. Default: $HUBCTL_KUBECONFIG, $KUBECONFIG, the admin.kubeconfig of a hub on this machine, "
    "or ~/.kube/config.",
)
@click.option(
    "--context",
    "context_name",
    metavar="NAME",
    shell_complete=_complete_context,
    help="The context of the kubeconfig. Default: the current context.",
)
@with_options(*IMPERSONATION)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version.")
def hubctl(**_options: Any) -> None:
    """Manage a fleet of Kubernetes clusters: registration, state, certificates.

    \b
    A cluster joins in four steps:
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.bootstrap
      spoke run --bootstrap-kubeconfig edge1.bootstrap   (on the cluster)
      hubctl get clusters -w
      hubctl accept edge1
    """


def _check_text(arguments: Sequence[str]) -> None:
    """Raises CommandError for arguments that are not UTF-8, because outputs and requests cannot contain them."""
    for place, argument in enumerate(arguments, 1):
        if not argument.isascii() and any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise UsageError(f"argument {place} is not text in UTF-8")


def _called(arguments: Sequence[str] | None, name: str) -> object:
    """Run the command and return its result. Raises CommandError for an unhandled OSError that names a file."""
    try:
        return hubctl(arguments, prog_name=name, standalone_mode=False)
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandError(f"{str(error.filename)[:200]}: {error.strerror}") from None


def run(arguments: Sequence[str] | None = None, name: str = "hubctl") -> int:
    """Run a command and return its exit code (`hubctl.errors`). `arguments` None: the arguments in `sys.argv`."""
    output = sys.stdout
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        ended = _called(arguments, name)
    except CommandError as error:
        click.echo(f"error: {error.sentence}", err=True)
        return error.code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit:
        if sys.stdout is output:
            raise
        return DONE  # the reader has closed the pipe; click has replaced the stream and exits with 1
    return ended if isinstance(ended, int) else DONE


def main(name: str = "hubctl") -> None:
    ignore_closed_pipe()
    try:
        sys.exit(run(name=name))
    except OSError as error:
        click.echo(f"error: the answer cannot be written: {error.strerror or error}", err=True)
        # The rest of the buffer cannot be written either; without this, Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
