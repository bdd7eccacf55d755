"""What every long-running process shares: service, heartbeat, startup checks, health server, logs."""
