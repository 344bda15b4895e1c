"""The command line. Each command's help teaches what it is for."""

import click

from voicemem.cli.backfill import import_calls
from voicemem.cli.calls import demo, history, receive, replay
from voicemem.cli.common import Commands
from voicemem.cli.copy import backup, copy, restore
from voicemem.cli.exports import erase_user, export, export_user
from voicemem.cli.mcp import mcp
from voicemem.cli.memories import memories, reindex, search
from voicemem.cli.proxy import proxy
from voicemem.cli.quickstart import quickstart
from voicemem.cli.scoring import truth
from voicemem.cli.service import check_config, serve, ui
from voicemem.cli.sessions import end, erase, sessions
from voicemem.cli.stores import hooks, keys, migrate, nodes, restored
from voicemem.cli.tail import tail
from voicemem.cli.users import users
from voicemem.compat.agent_memory_server.commands import import_ams
from voicemem.compat.agora.commands import agora
from voicemem.version import __version__


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="voicemem")
def main() -> None:
    """The memory of voice agents: what was really said, and what was really heard.

    Start with `voicemem demo`. Then run `voicemem serve`, send it a recorded call with `voicemem replay`, and look at
    it with `voicemem ui`. `voicemem quickstart` writes a settings file.

    \b
    Examples:
      voicemem serve --store sqlite:calls.db
      voicemem replay --session recorded-1
      voicemem history recorded-1

    `voicemem COMMAND --help` explains a command.
    """


keys.add_command(agora)
for command in (
    *(demo, quickstart, serve, check_config, ui, replay, history, search, memories, sessions, export, export_user),
    *(end, erase, erase_user, mcp, proxy, tail, receive, keys, hooks, users, backup, restore, copy, reindex, migrate),
    *(nodes, restored, truth, import_calls, import_ams),
):
    main.add_command(command)
