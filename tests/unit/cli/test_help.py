"""What the commands say about themselves."""

from __future__ import annotations

import click
from click.testing import CliRunner

from tests.support.rows import every_row
from voicemem.cli import main


def commands_of(group: click.Group, path: str = "") -> dict[str, click.Command]:
    """The commands of a group and of the groups in it, by what one types."""
    found = {}
    for name, command in group.commands.items():
        found[path + name] = command
        if isinstance(command, click.Group):
            found |= commands_of(command, f"{path}{name} ")
    return found


COMMANDS = commands_of(main)


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--help"], terminal_width=80)
    assert result.exit_code == 0
    return result.output


def test_every_command_has_a_whole_summary() -> None:
    """The lists of commands show one line each, and none of them is cut."""
    groups = {tuple(name.split()[:-1]) for name in COMMANDS}
    lines = [line for group in groups for line in shown(*group).splitlines()]
    for name, command in COMMANDS.items():
        assert command.short_help, name
        assert [line for line in lines if line.split() == [name.split()[-1], *command.short_help.split()]], name
    assert "..." not in "".join(lines).replace("[ARGS]...", "")


@every_row("name", COMMANDS)
def test_every_help_has_an_example_and_explains_its_flags(name: str) -> None:
    """Each command shows how it is used, and what each of its flags is for."""
    assert f"    voicemem {name}" in shown(*name.split())
    flags = [option for option in COMMANDS[name].params if isinstance(option, click.Option) and not option.hidden]
    assert [option.name for option in flags if not option.help] == []
