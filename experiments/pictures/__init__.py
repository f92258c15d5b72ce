"""Pictures of a report, a module each: PNGs one text column (3.5 inch) wide, told apart by all common kinds of colour vision."""
