"""Commands for whoever runs a store: backups, copies, migrations, nodes."""
