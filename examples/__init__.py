"""Programs that show how stepwell is used. They are not part of the installed package."""
