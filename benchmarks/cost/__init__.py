"""What one job costs: processor time of each part, and WAL, of this tree beside another commit."""
