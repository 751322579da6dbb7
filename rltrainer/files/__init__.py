"""Files: replaced in one step, read without surprises."""
