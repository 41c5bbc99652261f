"""Reports for people: fleet, judged exchanges, costs, and two scorings side by side."""
