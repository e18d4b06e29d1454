"""The algorithms, a folder each, and the networks and statistics that they share."""
