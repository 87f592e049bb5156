"""The verbs of the `reelpool` command."""
