"""Training for every task of the command: a task says what is read, modelled and measured; the rest is here."""
