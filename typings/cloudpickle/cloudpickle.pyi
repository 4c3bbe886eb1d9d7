# Its registries of classes are private; tests replace them by their names.
