"""The demo of the command, and what it shows: sentences, structures, speed, pictures and a report."""
