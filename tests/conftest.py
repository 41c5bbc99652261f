"""What holds for every test."""

from trials import load_profile

load_profile()
