"""The time that pages show: what an address says of it, its control, and figures beside those of the time before."""
