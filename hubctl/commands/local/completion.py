"""hubctl completion: prints the code for shell completion."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish", "powershell")
NAME, VARIABLE = "hubctl", "_HUBCTL_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the code that makes a shell complete hubctl's commands, options, kinds, and names from the hub.

    Names come from the hub of the kubeconfig in use, and are left out when it does not answer within two seconds. kubectl
    completes `kubectl hub` by itself, where the program kubectl_complete-hub is on the PATH.

    \b
    Examples:
      hubctl completion bash > /etc/bash_completion.d/hubctl
      hubctl completion zsh > ~/.zfunc/_hubctl
      hubctl completion fish > ~/.config/fish/completions/hubctl.fish
    """
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - all of SHELLS are click's own
    click.echo(found(click.get_current_context().find_root().command, {}, NAME, VARIABLE).source())
