"""Unix sockets: a blocking connection for clients, a non-blocking peer for the manager."""
