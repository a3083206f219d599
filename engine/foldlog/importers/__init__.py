"""Importers: transcripts of other programs as proposals."""
