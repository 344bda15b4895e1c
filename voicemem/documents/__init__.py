"""Working-memory documents: their kinds, versions and schemas, and the tools that change them."""
