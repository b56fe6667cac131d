"""Networks: how a base model is loaded, adapted, run for a cohort, and written back."""
