"""Training for all tasks: a task reads, models and measures; everything else is here."""
