"""Captures of real instrumentors: what their exporters send while a small agent has the same conversation.

`programs` are the agents, each run in its SDK's own environment (`environments`); `plays` is the model's part, played by a stand-in
on loopback; `readable` makes OTLP/JSON of what the exporters send, without what is one machine's alone.
`PYTHONPATH=tests .venv/bin/python -m otlp.capturing DIALECT` makes one capture again.
"""
