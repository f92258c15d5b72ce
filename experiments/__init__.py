"""Tasks, sweeps, reports, benchmarks and the command line. Imports models and kvjax; nothing imports it back."""
