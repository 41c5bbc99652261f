"""The policy that agents are judged by, and the files it is read from. Paths, ports and keys are settings of the service."""
