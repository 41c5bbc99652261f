"""The cost of judging: prices, estimates, and what one session may still spend. Money is counted in nano-dollars."""
