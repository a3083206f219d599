"""The simulator: the real engine on simulated clock, disk, log and scheduler, from one seed."""
