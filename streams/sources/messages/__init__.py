"""Records of transcripts as messages, encoded as they are read: events and exchanges, each with a short way that nearly all take.

Whatever is odd about a record sends it the longer way, as a record that the admission checks; no reading of files belongs here.
"""
