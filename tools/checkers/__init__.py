"""Programs of other projects that check files of this one, built from pinned sources."""
