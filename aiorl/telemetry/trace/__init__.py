"""Where time goes: slices that every process records, merged into one trace, and what cycles show."""
