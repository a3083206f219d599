"""Snapshots: verified copies of one partition's projection at a known place of its log."""
