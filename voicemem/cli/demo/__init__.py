"""`voicemem demo`: one recorded call, or calls over two nodes."""
