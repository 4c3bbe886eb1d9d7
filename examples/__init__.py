"""Programs that show what stepwell does."""
