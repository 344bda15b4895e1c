"""`voicemem copy`: a store is copied to another engine, with progress, and compared."""
