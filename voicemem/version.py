"""The version of this package, and how the rest of it is installed."""

__version__ = "0.1.0"


def without_server(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for a failed import: a sentence about the extra `server`, unless the module is one of ours."""
    missing = (error.name or "voicemem").partition(".")[0]
    if missing == "voicemem":
        return error
    return ModuleNotFoundError(
        f"The command and the library need the extra `server` ({missing} is missing): "
        "pip install 'voicemem-core[server]'",
        name=error.name,
    )
