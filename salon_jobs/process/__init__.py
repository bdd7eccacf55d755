"""What every long-running process shares: service, heartbeat, checks at start, health server, logs."""
