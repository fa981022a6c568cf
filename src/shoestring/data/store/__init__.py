"""Token stores on disk, and how they are made."""
