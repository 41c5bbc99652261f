"""Rules of drift: from what was measured of a project to findings. Incidents are made of findings next door."""
