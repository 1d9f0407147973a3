"""Constituency parsing: bracketed trees, labelled spans and CKY."""
