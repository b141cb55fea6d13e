"""Three programs meet only in the database, and agree here how to reach it and what it means."""
