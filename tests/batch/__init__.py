"""The batch: settlement, the reaper, the reports and the audit."""
