"""Parts of every long-running process: service, heartbeat, startup checks, health server, logs."""
