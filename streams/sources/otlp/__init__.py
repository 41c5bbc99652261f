"""Traces: OTLP requests to spans, spans to traces, traces to exchanges and events. Pure: no clock, no socket, no database."""
