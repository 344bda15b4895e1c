"""Where the settings of `serve` come from: flags, variables and a file."""
