"""Dictionaries of keys: from key columns to int32 codes and back."""
