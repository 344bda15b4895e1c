"""The commands about calls that are stored: list them, export them, end and erase them."""
