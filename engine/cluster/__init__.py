"""Workers on other devices and machines, through Dask distributed: connection, identity, checks before work starts."""
