"""Tables, pictures and pages of runs that are recorded. Pure functions of records."""
