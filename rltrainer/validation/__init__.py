"""Checks of what users give: rules of fields, suggestions for names."""
