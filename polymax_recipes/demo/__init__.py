"""The demo of the command: sentences, structures, speed, pictures and a report."""
