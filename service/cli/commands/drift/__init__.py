"""Commands on scores over time: drift checks, incidents, anchors, deployments, comparisons, costs, SQL, people."""
