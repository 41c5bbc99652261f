"""The period that pages show: its parameters, its control, and figures beside the preceding period's."""
