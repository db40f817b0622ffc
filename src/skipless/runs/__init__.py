"""What is computed for people to look at; the rooms meet here."""
